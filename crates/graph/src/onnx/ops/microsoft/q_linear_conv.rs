use super::quantized::channel_orders;
use crate::onnx::case::tensor;
use crate::onnx::ops::common::{evaluate_by_lowering, one};
use crate::onnx::ops::q_linear_conv;
use crate::onnx::{Attribute, Case, OnnxNode, Operator, Outputs};
use crate::{Builder, OpError};

/// ONNX's QLinearConv with the channels of the data first or last (ONNX Runtime QLinearConv).
pub static OPERATOR: Operator =
    Operator::in_domain("com.microsoft", "QLinearConv").lower(lower).evaluate(evaluate_by_lowering).cases(cases);

fn lower(node: &OnnxNode, b: &mut Builder) -> Result<Option<Outputs>, OpError> {
    if !node.attributes.flag_or("channels_last", false)? {
        return q_linear_conv::lower(node, b);
    }
    let Some(rank) = b.rank(node.input(0)?).filter(|&rank| rank > 2) else { return Ok(None) };
    let (first, last) = channel_orders(rank);
    let mut plain = node.clone();
    plain.inputs[0] = Some(b.transpose(node.input(0)?, &first)?);
    let Some(outputs) = q_linear_conv::lower(&plain, b)? else { return Ok(None) };
    one(b.transpose(outputs[0], &last)?)
}

fn cases() -> Vec<Case> {
    vec![
        Case::new("channels last", &OPERATOR, 1)
            .attribute("channels_last", Attribute::Int(1))
            .input(tensor(&[1, 2, 2, 2], &[76u8, 126, 222, 23, 168, 135, 33, 215]))
            .input(tensor(&[], &[0.02f32]))
            .input(tensor(&[], &[120u8]))
            .input(tensor(&[2, 2, 2, 2], &[87i8, -5, 112, 26, 102, 116, 17, -57, -91, 15, -79, 63, 108, -66, 12, -116]))
            .input(tensor(&[], &[0.01f32]))
            .input(tensor(&[], &[0i8]))
            .input(tensor(&[], &[0.03f32]))
            .input(tensor(&[], &[128u8]))
            .output(tensor(&[1, 1, 1, 2], &[15u8, 78])),
    ]
}
