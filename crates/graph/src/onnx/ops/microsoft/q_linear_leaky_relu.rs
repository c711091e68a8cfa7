use super::quantized::{dequantized, quantized};
use crate::onnx::case::tensor;
use crate::onnx::ops::common::one;
use crate::onnx::{Attribute, Case, OnnxNode, Operator, Outputs};
use crate::ops::Expr;
use crate::{Builder, OpError};

/// `αx` below zero, x above, of a quantized tensor, quantized (ONNX Runtime QLinearLeakyRelu).
pub static OPERATOR: Operator = Operator::in_domain("com.microsoft", "QLinearLeakyRelu").lower(lower).cases(cases);

fn lower(node: &OnnxNode, b: &mut Builder) -> Result<Option<Outputs>, OpError> {
    let alpha = node.attributes.float_or("alpha", 0.01)?;
    let x = dequantized(node, b, 0)?;
    let term = Expr::input(0);
    let result = b.map(&term.less(0.0).select(term.clone() * alpha, term), &[x])?;
    one(quantized(node, b, result, 3, node.input(0)?)?)
}

fn cases() -> Vec<Case> {
    vec![
        Case::new("signed", &OPERATOR, 1)
            .attribute("alpha", Attribute::Float(0.2))
            .input(tensor(&[5], &[13i8, 1, 125, 77, 74]))
            .input(tensor(&[], &[0.04f32]))
            .input(tensor(&[], &[3i8]))
            .input(tensor(&[], &[0.03f32]))
            .input(tensor(&[], &[-5i8]))
            .output(tensor(&[5], &[8i8, -6, 127, 94, 90])),
    ]
}
