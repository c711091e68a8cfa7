use super::quantized::{dequantized, quantized};
use crate::onnx::case::tensor;
use crate::onnx::ops::common::one;
use crate::onnx::{Case, OnnxNode, Operator, Outputs};
use crate::ops::Binary;
use crate::{Builder, OpError};

/// Sum of two quantized tensors that broadcast, quantized (ONNX Runtime QLinearAdd).
pub static OPERATOR: Operator = Operator::in_domain("com.microsoft", "QLinearAdd").lower(lower).cases(cases);

fn lower(node: &OnnxNode, b: &mut Builder) -> Result<Option<Outputs>, OpError> {
    let (x, y) = (dequantized(node, b, 0)?, dequantized(node, b, 3)?);
    let result = b.binary(Binary::Add, x, y)?;
    one(quantized(node, b, result, 6, node.input(0)?)?)
}

fn cases() -> Vec<Case> {
    vec![
        Case::new("a row broadcasts", &OPERATOR, 1)
            .input(tensor(&[2, 3], &[240u8, 159, 174, 228, 147, 197]))
            .input(tensor(&[], &[0.1f32]))
            .input(tensor(&[], &[100u8]))
            .input(tensor(&[3], &[212u8, 57, 14]))
            .input(tensor(&[], &[0.05f32]))
            .input(tensor(&[], &[7u8]))
            .input(tensor(&[], &[0.15f32]))
            .input(tensor(&[], &[90u8]))
            .output(tensor(&[2, 3], &[252u8, 146, 142, 244, 138, 157])),
    ]
}
