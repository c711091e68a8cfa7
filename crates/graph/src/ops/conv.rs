use super::Map;
use super::{Facts, TensorOp, Tensors};
use crate::{Fact, OpError};
use halimede_tensor::Tensor;
use smallvec::SmallVec;

/// How the border of a convolution or pooling window is made.
#[derive(Debug, Clone, PartialEq)]
pub enum Padding {
    /// Elements added before each spatial axis, then after each, in ONNX's order.
    Explicit(SmallVec<[i64; 4]>),
    /// As many as give `ceil(size / stride)` outputs, the odd one after.
    SameUpper,
    /// As many as give `ceil(size / stride)` outputs, the odd one before.
    SameLower,
}

/// Convolution over any number of spatial axes (ONNX Conv, ConvTranspose).
///
/// Inputs: `x [N, C, ...]`, weights `[M, C/groups, ...]` (transposed: `[C, M/groups, ...]`), optionally
/// a bias `[M]`, then what the epilogue reads. Output: `[N, M, ...]`.
#[derive(Debug, Clone, PartialEq)]
pub struct Conv {
    /// Step of the window per spatial axis.
    pub strides: SmallVec<[usize; 2]>,
    /// Distance between taps per spatial axis.
    pub dilations: SmallVec<[usize; 2]>,
    /// Border.
    pub padding: Padding,
    /// Groups of channels that do not see each other.
    pub groups: usize,
    /// For a transposed convolution.
    pub transposed: Option<Transposed>,
    /// Pointwise work on each result; its input 0 is the result, the others broadcast to it.
    pub epilogue: Option<Map>,
}

/// What only a transposed convolution has.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Transposed {
    /// Added to one side of the output per spatial axis; zeros where empty.
    pub output_padding: SmallVec<[usize; 2]>,
    /// The spatial output shape, which then decides the padding; empty where not given.
    pub output_shape: SmallVec<[usize; 2]>,
}

impl TensorOp for Conv {
    fn infer(&self, _inputs: &[Option<&Fact>]) -> Result<Facts, OpError> {
        Err(OpError::unsupported("Conv"))
    }

    fn evaluate(&self, _inputs: &[Option<&Tensor>]) -> Result<Tensors, OpError> {
        Err(OpError::unsupported("Conv"))
    }
}
