use super::{Facts, TensorOp, Tensors};
use crate::{Fact, OpError};
use halimede_tensor::Tensor;

/// `start, start + delta, …` below `limit` (ONNX Range). Inputs: start, limit, delta, scalars of one
/// datatype.
#[derive(Debug, Clone, PartialEq)]
pub struct Range;

impl TensorOp for Range {
    fn infer(&self, _inputs: &[Option<&Fact>]) -> Result<Facts, OpError> {
        Err(OpError::unsupported("Range"))
    }

    fn evaluate(&self, _inputs: &[Option<&Tensor>]) -> Result<Tensors, OpError> {
        Err(OpError::unsupported("Range"))
    }
}
