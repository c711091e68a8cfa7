use super::quantized::{dequantized, quantized};
use crate::onnx::case::tensor;
use crate::onnx::ops::common::one;
use crate::onnx::{Case, OnnxNode, Operator, Outputs};
use crate::ops::Unary;
use crate::{Builder, OpError};

/// `1 / (1 + e⁻ˣ)` of a quantized tensor, quantized (ONNX Runtime QLinearSigmoid).
pub static OPERATOR: Operator = Operator::in_domain("com.microsoft", "QLinearSigmoid").lower(lower).cases(cases);

fn lower(node: &OnnxNode, b: &mut Builder) -> Result<Option<Outputs>, OpError> {
    let x = dequantized(node, b, 0)?;
    let result = b.unary(Unary::Sigmoid, x)?;
    one(quantized(node, b, result, 3, node.input(0)?)?)
}

fn cases() -> Vec<Case> {
    vec![
        Case::new("unsigned", &OPERATOR, 1)
            .input(tensor(&[5], &[252u8, 113, 121, 128, 148]))
            .input(tensor(&[], &[0.04f32]))
            .input(tensor(&[], &[128u8]))
            .input(tensor(&[], &[0.00390625f32]))
            .input(tensor(&[], &[0u8]))
            .output(tensor(&[5], &[254u8, 91, 110, 128, 177])),
    ]
}
