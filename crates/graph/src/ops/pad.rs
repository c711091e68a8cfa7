use super::{Facts, TensorOp, Tensors};
use crate::{Fact, OpError};
use halimede_tensor::Tensor;

/// What stands in a border.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum PadMode {
    /// One value.
    Constant,
    /// The nearest element.
    Edge,
    /// The elements mirrored, without the edge itself.
    Reflect,
    /// The elements from the other end.
    Wrap,
}

/// Adds or, where negative, removes a border (ONNX Pad). Inputs: data, pads (i64, all befores then all
/// afters), optionally the value, optionally the axes that pads speaks of.
#[derive(Debug, Clone, PartialEq)]
pub struct Pad {
    /// What stands in the border.
    pub mode: PadMode,
}

impl TensorOp for Pad {
    fn infer(&self, _inputs: &[Option<&Fact>]) -> Result<Facts, OpError> {
        Err(OpError::unsupported("Pad"))
    }

    fn evaluate(&self, _inputs: &[Option<&Tensor>]) -> Result<Tensors, OpError> {
        Err(OpError::unsupported("Pad"))
    }
}
