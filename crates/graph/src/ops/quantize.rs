use super::{Facts, TensorOp, Tensors};
use crate::{Fact, OpError};
use halimede_tensor::DType;
use halimede_tensor::Tensor;

/// `saturate(round_half_even(x / scale) + zero_point)` (ONNX QuantizeLinear).
///
/// Inputs: x, scale, optionally zero point. Scale of one element, or one per index of `axis`, or with
/// `block` above 0 one per block of `axis`.
#[derive(Debug, Clone, PartialEq)]
pub struct Quantize {
    /// Datatype of the output.
    pub to: DType,
    /// Axis of the scales, resolved to be non-negative.
    pub axis: usize,
    /// Elements of `axis` that share a scale; 0 for none.
    pub block: usize,
    /// For 8-bit floats: out of range becomes the largest finite value.
    pub saturate: bool,
    /// The division is done in this datatype where given (ONNX `precision`).
    pub precision: Option<DType>,
}

/// `(x - zero_point) · scale` (ONNX DequantizeLinear). Inputs: x, scale, optionally zero point.
#[derive(Debug, Clone, PartialEq)]
pub struct Dequantize {
    /// Datatype of the output; the scale's where `None`.
    pub to: Option<DType>,
    /// Axis of the scales, resolved to be non-negative.
    pub axis: usize,
    /// Elements of `axis` that share a scale; 0 for none.
    pub block: usize,
}

impl TensorOp for Quantize {
    fn infer(&self, _inputs: &[Option<&Fact>]) -> Result<Facts, OpError> {
        Err(OpError::unsupported("Quantize"))
    }

    fn evaluate(&self, _inputs: &[Option<&Tensor>]) -> Result<Tensors, OpError> {
        Err(OpError::unsupported("Quantize"))
    }
}

impl TensorOp for Dequantize {
    fn infer(&self, _inputs: &[Option<&Fact>]) -> Result<Facts, OpError> {
        Err(OpError::unsupported("Dequantize"))
    }

    fn evaluate(&self, _inputs: &[Option<&Tensor>]) -> Result<Tensors, OpError> {
        Err(OpError::unsupported("Dequantize"))
    }
}
