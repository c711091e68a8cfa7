use crate::onnx::OnnxNode;
use crate::{Builder, OpError, ValueId};

/// A list of integers that is an attribute in older opsets and an input in newer ones.
#[derive(Debug, Clone)]
pub enum IntList {
    /// The node has none.
    Missing,
    /// The integers.
    Known(Vec<i64>),
    /// An input that is worked out for each request.
    Computed(ValueId),
}

impl IntList {
    /// The attribute where the node has it, else the input.
    pub fn read(node: &OnnxNode, b: &Builder, attribute: &str, input: usize) -> Result<IntList, OpError> {
        if let Some(list) = node.attributes.ints(attribute)? {
            return Ok(IntList::Known(list.to_vec()));
        }
        Ok(match node.optional(input) {
            None => IntList::Missing,
            Some(value) => b.fact(value).ints().map_or(IntList::Computed(value), IntList::Known),
        })
    }
}
