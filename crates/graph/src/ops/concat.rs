use super::{Facts, TensorOp, Tensors};
use crate::{Fact, OpError};
use halimede_tensor::Tensor;

/// Joins tensors along one axis. Inputs: one or more of the same rank.
#[derive(Debug, Clone, PartialEq)]
pub struct Concat {
    /// Axis, resolved to be non-negative.
    pub axis: usize,
}

impl TensorOp for Concat {
    fn infer(&self, _inputs: &[Option<&Fact>]) -> Result<Facts, OpError> {
        Err(OpError::unsupported("Concat"))
    }

    fn evaluate(&self, _inputs: &[Option<&Tensor>]) -> Result<Tensors, OpError> {
        Err(OpError::unsupported("Concat"))
    }
}
