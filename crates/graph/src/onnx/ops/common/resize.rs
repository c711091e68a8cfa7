use crate::onnx::OnnxNode;
use crate::ops::{CoordinateTransform, NearestRounding, ResizeMode};
use crate::{Builder, OpError, ValueId};

/// The attribute `mode` of the resampling operators.
pub fn resize_mode(node: &OnnxNode, rounding: NearestRounding) -> Result<ResizeMode, OpError> {
    Ok(match node.attributes.text_or("mode", "nearest")? {
        "nearest" => ResizeMode::Nearest(rounding),
        "linear" | "bilinear" => ResizeMode::Linear,
        "cubic" => ResizeMode::Cubic { coefficient: node.attributes.float_or("cubic_coeff_a", -0.75)? },
        other => return Err(OpError::invalid(format!("mode is '{other}'; ONNX knows nearest, linear and cubic"))),
    })
}

/// The attribute `nearest_mode`.
pub fn nearest_rounding(node: &OnnxNode) -> Result<NearestRounding, OpError> {
    Ok(match node.attributes.text_or("nearest_mode", "round_prefer_floor")? {
        "round_prefer_floor" => NearestRounding::RoundPreferFloor,
        "round_prefer_ceil" => NearestRounding::RoundPreferCeil,
        "floor" => NearestRounding::Floor,
        "ceil" => NearestRounding::Ceil,
        other => return Err(OpError::invalid(format!("nearest_mode '{other}' is not one of ONNX"))),
    })
}

/// The attribute `coordinate_transformation_mode`.
pub fn coordinate_transform(node: &OnnxNode) -> Result<CoordinateTransform, OpError> {
    Ok(match node.attributes.text_or("coordinate_transformation_mode", "half_pixel")? {
        "half_pixel" => CoordinateTransform::HalfPixel,
        "half_pixel_symmetric" => CoordinateTransform::HalfPixelSymmetric,
        "pytorch_half_pixel" => CoordinateTransform::PytorchHalfPixel,
        "align_corners" => CoordinateTransform::AlignCorners,
        "asymmetric" => CoordinateTransform::Asymmetric,
        "tf_half_pixel_for_nn" => CoordinateTransform::TfHalfPixelForNn,
        "tf_crop_and_resize" => CoordinateTransform::TfCropAndResize,
        other => {
            return Err(OpError::invalid(format!("coordinate_transformation_mode '{other}' is not one of ONNX")));
        }
    })
}

/// The rounding of opset 10 and below, which the standard left open: up where the output is smaller,
/// down where it is larger, as ONNX Runtime does.
pub fn early_rounding(b: &Builder, scales: ValueId) -> NearestRounding {
    let shrinks = |scales: &[f32]| scales.iter().any(|&scale| scale < 1.0);
    match b.graph().constant(scales).and_then(|scales| scales.slice::<f32>().ok()) {
        Some(scales) if shrinks(scales) => NearestRounding::Ceil,
        _ => NearestRounding::Floor,
    }
}
