use super::{Facts, TensorOp, Tensors};
use crate::{Fact, OpError};
use halimede_tensor::Tensor;

/// The same elements under another shape (ONNX Reshape; Squeeze, Unsqueeze and Flatten lower to it
/// where shapes are known). Inputs: data, shape (i64; one -1 is worked out, 0 copies the input's
/// dimension unless `allow_zero`).
#[derive(Debug, Clone, PartialEq)]
pub struct Reshape {
    /// A 0 in the shape is a size.
    pub allow_zero: bool,
}

impl TensorOp for Reshape {
    fn infer(&self, _inputs: &[Option<&Fact>]) -> Result<Facts, OpError> {
        Err(OpError::unsupported("Reshape"))
    }

    fn evaluate(&self, _inputs: &[Option<&Tensor>]) -> Result<Tensors, OpError> {
        Err(OpError::unsupported("Reshape"))
    }
}
