use super::{Facts, TensorOp, Tensors};
use crate::{Fact, OpError};
use halimede_tensor::Tensor;

/// `exp(x - max) / Σ exp(x - max)` along an axis, or its logarithm. Inputs: x.
#[derive(Debug, Clone, PartialEq)]
pub struct Softmax {
    /// Axis, resolved to be non-negative.
    pub axis: usize,
    /// The logarithm (ONNX LogSoftmax).
    pub log: bool,
}

impl TensorOp for Softmax {
    fn infer(&self, _inputs: &[Option<&Fact>]) -> Result<Facts, OpError> {
        Err(OpError::unsupported("Softmax"))
    }

    fn evaluate(&self, _inputs: &[Option<&Tensor>]) -> Result<Tensors, OpError> {
        Err(OpError::unsupported("Softmax"))
    }
}
