use super::{Facts, TensorOp, Tensors};
use crate::{Fact, OpError};
use halimede_tensor::Tensor;

/// Scaled dot-product attention: `softmax(scale · Q Kᵀ + mask) V`, one pass, never holding the scores.
///
/// Inputs: `Q [B, H, S, D]`, `K [B, G, T, D]`, `V [B, G, T, E]` with `H` a multiple of `G` (grouped
/// heads: query head `h` reads key head `h / (H / G)`), and optionally a mask that broadcasts to
/// `[B, H, S, T]`: added where it is a float, and where it is Bool, `true` lets a key take part.
/// Output: `[B, H, S, E]`. A row in which no key takes part gives zeros for a Bool mask.
#[derive(Debug, Clone, PartialEq)]
pub struct Attention {
    /// Factor of the scores; `1 / sqrt(D)` where `None`.
    pub scale: Option<f32>,
    /// Query `s` sees key `t` only where `t <= s + offset`, with `offset` = `T - S` when
    /// `causal_from_end`, else 0.
    pub causal: bool,
    /// See `causal`.
    pub causal_from_end: bool,
    /// Scores become `c · tanh(score / c)` before the mask, where positive.
    pub softcap: f32,
}

impl TensorOp for Attention {
    fn infer(&self, _inputs: &[Option<&Fact>]) -> Result<Facts, OpError> {
        Err(OpError::unsupported("Attention"))
    }

    fn evaluate(&self, _inputs: &[Option<&Tensor>]) -> Result<Tensors, OpError> {
        Err(OpError::unsupported("Attention"))
    }
}
