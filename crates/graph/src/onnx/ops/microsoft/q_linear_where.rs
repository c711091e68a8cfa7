use super::quantized::{dequantized, quantized};
use crate::onnx::case::{bools, tensor};
use crate::onnx::ops::common::one;
use crate::onnx::{Case, OnnxNode, Operator, Outputs};
use crate::ops::Expr;
use crate::{Builder, OpError};

/// One of two quantized elements by a condition, quantized (ONNX Runtime QLinearWhere).
pub static OPERATOR: Operator = Operator::in_domain("com.microsoft", "QLinearWhere").lower(lower).cases(cases);

fn lower(node: &OnnxNode, b: &mut Builder) -> Result<Option<Outputs>, OpError> {
    let (x, y) = (dequantized(node, b, 1)?, dequantized(node, b, 4)?);
    let picked = b.map(&Expr::input(0).select(Expr::input(1), Expr::input(2)), &[node.input(0)?, x, y])?;
    one(quantized(node, b, picked, 7, node.input(1)?)?)
}

fn cases() -> Vec<Case> {
    vec![
        Case::new("a scalar broadcasts", &OPERATOR, 1)
            .input(bools(&[3], &[true, false, true]))
            .input(tensor(&[3], &[163u8, 10, 189]))
            .input(tensor(&[], &[0.1f32]))
            .input(tensor(&[], &[100u8]))
            .input(tensor(&[1], &[120u8]))
            .input(tensor(&[], &[0.2f32]))
            .input(tensor(&[], &[50u8]))
            .input(tensor(&[], &[0.25f32]))
            .input(tensor(&[], &[70u8]))
            .output(tensor(&[3], &[95u8, 126, 106])),
    ]
}
