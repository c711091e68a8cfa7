use super::{Facts, TensorOp, Tensors};
use crate::{Fact, OpError};
use halimede_tensor::Tensor;

/// Broadcasts to a shape by NumPy's rule, both ways (ONNX Expand). Inputs: data, shape (i64).
#[derive(Debug, Clone, PartialEq)]
pub struct Expand;

impl TensorOp for Expand {
    fn infer(&self, _inputs: &[Option<&Fact>]) -> Result<Facts, OpError> {
        Err(OpError::unsupported("Expand"))
    }

    fn evaluate(&self, _inputs: &[Option<&Tensor>]) -> Result<Tensors, OpError> {
        Err(OpError::unsupported("Expand"))
    }
}
