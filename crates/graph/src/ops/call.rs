use crate::onnx::ops::lower_call;
use crate::onnx::{Attributes, Operator};
use crate::{Fact, Graph, OpError};

/// An ONNX operator run by its reference evaluation, for what no core operator expresses.
#[derive(Debug, Clone)]
pub struct Call {
    /// The operator.
    pub operator: &'static Operator,
    /// The opset of its domain that the model asks for.
    pub opset: i64,
    /// Its attributes.
    pub attributes: Attributes,
    /// Which outputs the model names; an evaluation gives all up to the last named one.
    pub outputs: Vec<bool>,
}

impl Call {
    /// The call as a graph of core operators, for inputs of which so much is known; `None` where its
    /// lowering still lacks something. Inputs that are wholly known are constants of the graph, the
    /// others its inputs, in order. `name` and `origin` are those of the nodes.
    pub fn lowered(&self, inputs: Vec<Option<Fact>>, name: &str, origin: &str) -> Result<Option<Graph>, OpError> {
        lower_call(self, inputs, name, origin)
    }
}
