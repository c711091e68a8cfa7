use super::quantized::{dequantized, quantized};
use crate::onnx::case::tensor;
use crate::onnx::ops::common::{axis_or, evaluate_by_lowering, one};
use crate::onnx::{Attribute, Case, OnnxNode, Operator, Outputs};
use crate::ops::{Concat, Op};
use crate::{Builder, OpError, ValueId};

/// Joins quantized tensors of different scales along an axis, quantized (ONNX Runtime QLinearConcat).
pub static OPERATOR: Operator =
    Operator::in_domain("com.microsoft", "QLinearConcat").lower(lower).evaluate(evaluate_by_lowering).cases(cases);

fn lower(node: &OnnxNode, b: &mut Builder) -> Result<Option<Outputs>, OpError> {
    let Some(rank) = b.rank(node.input(2)?) else { return Ok(None) };
    // The result's scale and zero point stand before the tensors, which come with their own.
    let pieces: Vec<ValueId> =
        (2..node.inputs.len()).step_by(3).map(|first| dequantized(node, b, first)).collect::<Result<_, _>>()?;
    let joined = b.add(Op::Concat(Concat { axis: axis_or(node, 0, rank)? }), &pieces)?;
    one(quantized(node, b, joined, 0, node.input(2)?)?)
}

fn cases() -> Vec<Case> {
    vec![
        Case::new("two scales", &OPERATOR, 1)
            .attribute("axis", Attribute::Int(1))
            .input(tensor(&[], &[0.1f32]))
            .input(tensor(&[], &[100u8]))
            .input(tensor(&[2, 1], &[36u8, 131]))
            .input(tensor(&[], &[0.05f32]))
            .input(tensor(&[], &[120u8]))
            .input(tensor(&[2, 2], &[247u8, 118, 206, 233]))
            .input(tensor(&[], &[0.1f32]))
            .input(tensor(&[], &[100u8]))
            .output(tensor(&[2, 3], &[58u8, 247, 118, 106, 206, 233])),
    ]
}
