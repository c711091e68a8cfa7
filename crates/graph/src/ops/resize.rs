use super::{Facts, TensorOp, Tensors};
use crate::{Fact, OpError};
use halimede_tensor::Tensor;
use smallvec::SmallVec;

/// How values between elements are made.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum ResizeMode {
    /// The nearest element.
    Nearest(NearestRounding),
    /// Linear along each axis.
    Linear,
    /// Cubic along each axis.
    Cubic {
        /// ONNX `cubic_coeff_a`.
        coefficient: f32,
    },
}

/// Which element is nearest.
#[derive(Debug, Clone, Copy, PartialEq)]
#[allow(missing_docs, reason = "named after ONNX's nearest_mode")]
pub enum NearestRounding {
    RoundPreferFloor,
    RoundPreferCeil,
    Floor,
    Ceil,
}

/// How an output coordinate becomes an input coordinate.
#[derive(Debug, Clone, Copy, PartialEq)]
#[allow(missing_docs, reason = "named after ONNX's coordinate_transformation_mode")]
pub enum CoordinateTransform {
    HalfPixel,
    HalfPixelSymmetric,
    PytorchHalfPixel,
    AlignCorners,
    Asymmetric,
    TfHalfPixelForNn,
    TfCropAndResize,
}

/// Resampling (ONNX Resize, Upsample). Inputs: x, optionally roi, optionally scales (f32), optionally
/// sizes (i64): exactly one of scales and sizes.
#[derive(Debug, Clone, PartialEq)]
pub struct Resize {
    /// How values are made.
    pub mode: ResizeMode,
    /// How coordinates are made.
    pub transform: CoordinateTransform,
    /// Low-pass when shrinking.
    pub antialias: bool,
    /// Weights outside the input are dropped.
    pub exclude_outside: bool,
    /// Value outside the input for `TfCropAndResize`.
    pub extrapolation_value: f32,
    /// Axes that roi, scales and sizes speak of; all where empty.
    pub axes: SmallVec<[usize; 4]>,
    /// ONNX `keep_aspect_ratio_policy`: stretch (0), not_larger (1), not_smaller (2).
    pub keep_aspect_ratio: u8,
}

impl Resize {
    /// Resampling without any of the rarer attributes.
    pub fn new(mode: ResizeMode, transform: CoordinateTransform) -> Resize {
        Resize {
            mode,
            transform,
            antialias: false,
            exclude_outside: false,
            extrapolation_value: 0.0,
            axes: SmallVec::new(),
            keep_aspect_ratio: 0,
        }
    }
}

impl TensorOp for Resize {
    fn infer(&self, _inputs: &[Option<&Fact>]) -> Result<Facts, OpError> {
        Err(OpError::unsupported("Resize"))
    }

    fn evaluate(&self, _inputs: &[Option<&Tensor>]) -> Result<Tensors, OpError> {
        Err(OpError::unsupported("Resize"))
    }
}
