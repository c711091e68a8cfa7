use super::{Facts, TensorOp, Tensors};
use crate::{Fact, OpError};
use halimede_tensor::Tensor;

/// A strided part (ONNX Slice). Inputs: data, starts, ends, optionally axes, optionally steps (i32 or i64).
#[derive(Debug, Clone, PartialEq)]
pub struct Slice;

impl TensorOp for Slice {
    fn infer(&self, _inputs: &[Option<&Fact>]) -> Result<Facts, OpError> {
        Err(OpError::unsupported("Slice"))
    }

    fn evaluate(&self, _inputs: &[Option<&Tensor>]) -> Result<Tensors, OpError> {
        Err(OpError::unsupported("Slice"))
    }
}
