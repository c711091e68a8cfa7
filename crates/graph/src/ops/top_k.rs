use super::{Facts, TensorOp, Tensors};
use crate::{Fact, OpError};
use halimede_tensor::Tensor;

/// The k largest or smallest along an axis with their indices (ONNX TopK). Inputs: data, k (i64 of one
/// element). Outputs: values, i64 indices; among equals the lower index comes first.
#[derive(Debug, Clone, PartialEq)]
pub struct TopK {
    /// Axis, resolved to be non-negative.
    pub axis: usize,
    /// Largest instead of smallest.
    pub largest: bool,
    /// In order of value.
    pub sorted: bool,
}

impl TensorOp for TopK {
    fn infer(&self, _inputs: &[Option<&Fact>]) -> Result<Facts, OpError> {
        Err(OpError::unsupported("TopK"))
    }

    fn evaluate(&self, _inputs: &[Option<&Tensor>]) -> Result<Tensors, OpError> {
        Err(OpError::unsupported("TopK"))
    }
}
