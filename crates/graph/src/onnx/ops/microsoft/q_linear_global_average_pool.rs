use super::quantized::{dequantized, quantized};
use crate::onnx::case::tensor;
use crate::onnx::ops::common::{evaluate_by_lowering, one, spatial_rank};
use crate::onnx::{Attribute, Case, OnnxNode, Operator, Outputs};
use crate::ops::ReduceKind;
use crate::{Builder, OpError};

/// Mean of each channel of a quantized tensor over all spatial axes, quantized (ONNX Runtime
/// QLinearGlobalAveragePool).
pub static OPERATOR: Operator = Operator::in_domain("com.microsoft", "QLinearGlobalAveragePool")
    .lower(lower)
    .evaluate(evaluate_by_lowering)
    .cases(cases);

fn lower(node: &OnnxNode, b: &mut Builder) -> Result<Option<Outputs>, OpError> {
    let Some(spatial) = spatial_rank(b, node.input(0)?)? else { return Ok(None) };
    let first = if node.attributes.flag_or("channels_last", false)? { 1 } else { 2 };
    let x = dequantized(node, b, 0)?;
    let mean = b.reduce(ReduceKind::Mean, x, first..first + spatial, true)?;
    one(quantized(node, b, mean, 3, node.input(0)?)?)
}

fn cases() -> Vec<Case> {
    vec![
        Case::new("channels first", &OPERATOR, 1)
            .attribute("channels_last", Attribute::Int(0))
            .input(tensor(&[1, 2, 2, 3], &[209u8, 160, 112, 131, 67, 126, 96, 63, 253, 3, 24, 49]))
            .input(tensor(&[], &[0.1f32]))
            .input(tensor(&[], &[100u8]))
            .input(tensor(&[], &[0.05f32]))
            .input(tensor(&[], &[110u8]))
            .output(tensor(&[1, 2, 1, 1], &[178u8, 73])),
        Case::new("channels last", &OPERATOR, 1)
            .attribute("channels_last", Attribute::Int(1))
            .input(tensor(&[1, 2, 2, 3], &[247u8, 176, 224, 51, 183, 94, 124, 0, 157, 211, 169, 39]))
            .input(tensor(&[], &[0.1f32]))
            .input(tensor(&[], &[100u8]))
            .input(tensor(&[], &[0.05f32]))
            .input(tensor(&[], &[110u8]))
            .output(tensor(&[1, 1, 1, 3], &[226u8, 174, 167])),
    ]
}
