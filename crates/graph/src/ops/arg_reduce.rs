use super::{Facts, TensorOp, Tensors};
use crate::{Fact, OpError};
use halimede_tensor::Tensor;

/// Index of the largest or smallest element along an axis (ONNX ArgMax, ArgMin).
///
/// Inputs: data. Outputs: i64 indices.
#[derive(Debug, Clone, PartialEq)]
pub struct ArgReduce {
    /// Largest instead of smallest.
    pub largest: bool,
    /// Axis, resolved to be non-negative.
    pub axis: usize,
    /// Keep the axis with size 1.
    pub keep_dims: bool,
    /// Among equals, the last instead of the first.
    pub last: bool,
}

impl TensorOp for ArgReduce {
    fn infer(&self, _inputs: &[Option<&Fact>]) -> Result<Facts, OpError> {
        Err(OpError::unsupported("ArgReduce"))
    }

    fn evaluate(&self, _inputs: &[Option<&Tensor>]) -> Result<Tensors, OpError> {
        Err(OpError::unsupported("ArgReduce"))
    }
}
