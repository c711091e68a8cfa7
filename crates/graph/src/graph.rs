use crate::{Fact, Op};
use halimede_tensor::Tensor;
use smallvec::SmallVec;
use std::fmt;

/// Names a value of one [`Graph`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ValueId(pub u32);

impl ValueId {
    /// The position in [`Graph::values`].
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

impl fmt::Debug for ValueId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "%{}", self.0)
    }
}

/// A name and what is known of a value.
#[derive(Debug, Clone, Default)]
pub struct ValueInfo {
    /// The model's own name, or one made from the node that the value came from.
    pub name: String,
    /// Kind, datatype, shape, and the value itself where it is constant.
    pub fact: Fact,
}

/// One operation. A missing optional input is `None`.
#[derive(Debug, Clone)]
pub struct Node {
    /// The model's own name for the node that this one came from.
    pub name: String,
    /// The ONNX operator that this node came from, for messages: `Gemm (opset 13)`.
    pub origin: String,
    /// What it computes.
    pub op: Op,
    /// Values read.
    pub inputs: SmallVec<[Option<ValueId>; 4]>,
    /// Values written; each value is written once.
    pub outputs: SmallVec<[ValueId; 1]>,
}

/// Operations in an order in which every value is written before it is read. A graph is closed: the
/// body of a control-flow operation gets what it needs from outside as inputs of its own.
#[derive(Debug, Clone, Default)]
pub struct Graph {
    /// The model's name for it.
    pub name: String,
    /// Every value.
    pub values: Vec<ValueInfo>,
    /// Every operation, in running order.
    pub nodes: Vec<Node>,
    /// Values given from outside, in the model's order.
    pub inputs: Vec<ValueId>,
    /// Values given back, in the model's order.
    pub outputs: Vec<ValueId>,
}

impl Graph {
    /// What is known of a value.
    pub fn fact(&self, value: ValueId) -> &Fact {
        &self.values[value.index()].fact
    }

    /// The value itself, where it is constant.
    pub fn constant(&self, value: ValueId) -> Option<&Tensor> {
        self.fact(value).constant.as_ref()
    }

    /// Adds a value.
    pub fn add_value(&mut self, name: impl Into<String>, fact: Fact) -> ValueId {
        self.values.push(ValueInfo { name: name.into(), fact });
        ValueId(self.values.len() as u32 - 1)
    }

    /// Adds a constant.
    pub fn add_constant(&mut self, name: impl Into<String>, tensor: Tensor) -> ValueId {
        self.add_value(name, Fact::constant(tensor))
    }

    /// For every value, the positions in [`Graph::nodes`] of the nodes that read it.
    pub fn consumers(&self) -> Vec<Vec<usize>> {
        let mut consumers = vec![Vec::new(); self.values.len()];
        for (index, node) in self.nodes.iter().enumerate() {
            for input in node.inputs.iter().flatten() {
                consumers[input.index()].push(index);
            }
        }
        consumers
    }

    /// For every value, the position in [`Graph::nodes`] of the node that writes it.
    pub fn producers(&self) -> Vec<Option<usize>> {
        let mut producers = vec![None; self.values.len()];
        for (index, node) in self.nodes.iter().enumerate() {
            for output in &node.outputs {
                producers[output.index()] = Some(index);
            }
        }
        producers
    }
}
