use super::quantized::{dequantized, quantized};
use crate::onnx::case::tensor;
use crate::onnx::ops::common::one;
use crate::onnx::{Case, OnnxNode, Operator, Outputs};
use crate::ops::Binary;
use crate::{Builder, OpError};

/// Product of two quantized tensors that broadcast, quantized (ONNX Runtime QLinearMul).
pub static OPERATOR: Operator = Operator::in_domain("com.microsoft", "QLinearMul").lower(lower).cases(cases);

fn lower(node: &OnnxNode, b: &mut Builder) -> Result<Option<Outputs>, OpError> {
    let (x, y) = (dequantized(node, b, 0)?, dequantized(node, b, 3)?);
    let result = b.binary(Binary::Mul, x, y)?;
    one(quantized(node, b, result, 6, node.input(0)?)?)
}

fn cases() -> Vec<Case> {
    vec![
        Case::new("a row broadcasts", &OPERATOR, 1)
            .input(tensor(&[2, 3], &[203u8, 30, 119, 208, 77, 87]))
            .input(tensor(&[], &[0.1f32]))
            .input(tensor(&[], &[100u8]))
            .input(tensor(&[3], &[70u8, 183, 64]))
            .input(tensor(&[], &[0.05f32]))
            .input(tensor(&[], &[7u8]))
            .input(tensor(&[], &[0.4f32]))
            .input(tensor(&[], &[90u8]))
            .output(tensor(&[2, 3], &[171u8, 0, 104, 175, 39, 81])),
    ]
}
