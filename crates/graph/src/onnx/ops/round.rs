use super::common::one;
use crate::onnx::case::tensor;
use crate::onnx::{Case, OnnxNode, Operator, Outputs};
use crate::ops::Unary;
use crate::{Builder, OpError};

/// Nearest integer, halves to even (ONNX Round, opset 22).
pub static OPERATOR: Operator = Operator::new("Round").lower(lower).cases(cases);

fn lower(node: &OnnxNode, b: &mut Builder) -> Result<Option<Outputs>, OpError> {
    one(b.unary(Unary::Round, node.input(0)?)?)
}

fn cases() -> Vec<Case> {
    let (x, y) = (tensor(&[4], &[-2.5f32, 0.5, 1.5, 2.4]), tensor(&[4], &[-2.0f32, 0.0, 2.0, 2.0]));
    vec![Case::new("values", &OPERATOR, 22).input(x).output(y)]
}
