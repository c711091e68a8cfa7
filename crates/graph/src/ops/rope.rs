use super::{Facts, TensorOp, Tensors};
use crate::{Fact, OpError};
use halimede_tensor::Tensor;

/// Rotary position embedding (ONNX RotaryEmbedding, opset 23).
///
/// Inputs: `x [B, H, S, D]`, `cos` and `sin` of `[B, S, R/2]`, or of `[P, R/2]` with positions
/// `[B, S]` (i64) as a fourth input. Output: as x. The first R features of each head are turned, the
/// rest pass.
#[derive(Debug, Clone, PartialEq)]
pub struct Rope {
    /// Pairs are neighbours (2i, 2i+1) instead of halves (i, i + R/2).
    pub interleaved: bool,
    /// R; the whole head where 0.
    pub rotary_dim: usize,
}

impl TensorOp for Rope {
    fn infer(&self, _inputs: &[Option<&Fact>]) -> Result<Facts, OpError> {
        Err(OpError::unsupported("Rope"))
    }

    fn evaluate(&self, _inputs: &[Option<&Tensor>]) -> Result<Tensors, OpError> {
        Err(OpError::unsupported("Rope"))
    }
}
