use super::Padding;
use super::{Facts, TensorOp, Tensors};
use crate::{Fact, OpError};
use halimede_tensor::Tensor;
use smallvec::SmallVec;

/// What a pooling window gives.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum PoolKind {
    /// The largest element, and as a second output its flat index in the input.
    Max {
        /// Indices count columns first (ONNX `storage_order`).
        column_major: bool,
    },
    /// The mean.
    Average {
        /// The border counts as zeros.
        count_include_pad: bool,
    },
    /// The p-norm.
    Lp {
        /// The p.
        p: i64,
    },
}

/// Windows over the spatial axes of `[N, C, ...]` (ONNX MaxPool, AveragePool, LpPool).
///
/// Inputs: x. Outputs: the result, and for Max with two outputs the i64 indices.
#[derive(Debug, Clone, PartialEq)]
pub struct Pool {
    /// What a window gives.
    pub kind: PoolKind,
    /// Window size per spatial axis; the whole axis where empty (ONNX Global*Pool).
    pub kernel: SmallVec<[usize; 2]>,
    /// Step of the window per spatial axis.
    pub strides: SmallVec<[usize; 2]>,
    /// Distance between taps per spatial axis.
    pub dilations: SmallVec<[usize; 2]>,
    /// Border.
    pub padding: Padding,
    /// Round the number of windows up.
    pub ceil_mode: bool,
    /// 1, or 2 with the indices.
    pub outputs: usize,
}

impl TensorOp for Pool {
    fn infer(&self, _inputs: &[Option<&Fact>]) -> Result<Facts, OpError> {
        Err(OpError::unsupported("Pool"))
    }

    fn evaluate(&self, _inputs: &[Option<&Tensor>]) -> Result<Tensors, OpError> {
        Err(OpError::unsupported("Pool"))
    }
}
