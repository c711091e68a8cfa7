use super::Map;
use super::{Facts, TensorOp, Tensors};
use crate::{Fact, OpError};
use halimede_tensor::Tensor;

/// Over what a normalisation takes its statistics.
#[derive(Debug, Clone, PartialEq)]
pub enum NormKind {
    /// Mean and variance over `axis` and every axis after it (ONNX LayerNormalization). Scale and
    /// bias broadcast to those axes.
    Layer {
        /// First axis, resolved to be non-negative.
        axis: usize,
    },
    /// Mean square over `axis` and every axis after it (ONNX RMSNormalization); no bias.
    Rms {
        /// First axis, resolved to be non-negative.
        axis: usize,
    },
    /// Mean and variance over groups of channels of `[N, C, ...]` (ONNX GroupNormalization, opset 21).
    /// Scale and bias are `[C]`.
    Group {
        /// Number of groups.
        groups: usize,
    },
    /// Each channel by itself (ONNX InstanceNormalization). Scale and bias are `[C]`.
    Instance,
}

/// `(x - mean) / sqrt(variance + epsilon) · scale + bias`, statistics in f32 or wider.
///
/// Inputs: x, optionally scale, optionally bias, then what the epilogue reads.
#[derive(Debug, Clone, PartialEq)]
pub struct Norm {
    /// Over what.
    pub kind: NormKind,
    /// Added to the variance.
    pub epsilon: f32,
    /// Pointwise work on each result; its input 0 is the result, the others broadcast to it.
    pub epilogue: Option<Map>,
}

impl TensorOp for Norm {
    fn infer(&self, _inputs: &[Option<&Fact>]) -> Result<Facts, OpError> {
        Err(OpError::unsupported("Norm"))
    }

    fn evaluate(&self, _inputs: &[Option<&Tensor>]) -> Result<Tensors, OpError> {
        Err(OpError::unsupported("Norm"))
    }
}
