use crate::onnx::{Attributes, Operator};

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
