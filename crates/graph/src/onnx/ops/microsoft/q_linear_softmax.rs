use super::quantized::{dequantized, quantized};
use crate::onnx::case::tensor;
use crate::onnx::ops::common::{evaluate_by_lowering, lower_rows};
use crate::onnx::{Attribute, Case, OnnxNode, Operator, Outputs};
use crate::ops::{Op, Softmax};
use crate::{Builder, OpError};

/// Normalised exponentials of a quantized tensor, quantized, by the rules of the ONNX opset that an
/// attribute names (ONNX Runtime QLinearSoftmax).
pub static OPERATOR: Operator =
    Operator::in_domain("com.microsoft", "QLinearSoftmax").lower(lower).evaluate(evaluate_by_lowering).cases(cases);

fn lower(node: &OnnxNode, b: &mut Builder) -> Result<Option<Outputs>, OpError> {
    let quantized_input = node.input(0)?;
    let mut plain = node.clone();
    plain.opset = node.attributes.required("opset", node.attributes.int("opset")?)?;
    plain.inputs[0] = Some(dequantized(node, b, 0)?);
    let Some(outputs) = lower_rows(&plain, b, |b, x, axis, _| b.add(Op::Softmax(Softmax { axis, log: false }), &[x]))?
    else {
        return Ok(None);
    };
    let y = quantized(node, b, outputs[0], 3, quantized_input)?;
    Ok(Some(smallvec::smallvec![y]))
}

fn cases() -> Vec<Case> {
    vec![
        Case::new("last axis", &OPERATOR, 1)
            .attribute("axis", Attribute::Int(-1))
            .attribute("opset", Attribute::Int(13))
            .input(tensor(&[2, 4], &[178u8, 158, 86, 252, 118, 54, 215, 40]))
            .input(tensor(&[], &[0.02f32]))
            .input(tensor(&[], &[100u8]))
            .input(tensor(&[], &[0.00390625f32]))
            .input(tensor(&[], &[0u8]))
            .output(tensor(&[2, 4], &[41u8, 28, 7, 181, 30, 8, 211, 6])),
        Case::new("an inner axis", &OPERATOR, 1)
            .attribute("axis", Attribute::Int(1))
            .attribute("opset", Attribute::Int(13))
            .input(tensor(&[1, 3, 2], &[218u8, 156, 29, 11, 113, 9]))
            .input(tensor(&[], &[0.02f32]))
            .input(tensor(&[], &[100u8]))
            .input(tensor(&[], &[0.00390625f32]))
            .input(tensor(&[], &[0u8]))
            .output(tensor(&[1, 3, 2], &[224u8, 231, 5, 13, 27, 12])),
    ]
}
