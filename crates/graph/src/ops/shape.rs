use super::{Facts, TensorOp, Tensors};
use crate::{Fact, OpError};
use halimede_tensor::Tensor;

/// The dimensions `start..end` of a tensor as i64 (ONNX Shape). Inputs: data.
#[derive(Debug, Clone, PartialEq)]
pub struct ShapeOf {
    /// First axis; negative from the end.
    pub start: i64,
    /// One past the last axis; negative from the end; the rank where `None`.
    pub end: Option<i64>,
}

impl TensorOp for ShapeOf {
    fn infer(&self, _inputs: &[Option<&Fact>]) -> Result<Facts, OpError> {
        Err(OpError::unsupported("ShapeOf"))
    }

    fn evaluate(&self, _inputs: &[Option<&Tensor>]) -> Result<Tensors, OpError> {
        Err(OpError::unsupported("ShapeOf"))
    }
}
