use super::common::one;
use crate::onnx::case::tensor;
use crate::onnx::{Case, OnnxNode, Operator, Outputs};
use crate::ops::Expr;
use crate::{Builder, OpError};

/// `max(0, x)` (ONNX Relu, opset 14).
pub static OPERATOR: Operator = Operator::new("Relu").lower(lower).cases(cases);

fn lower(node: &OnnxNode, b: &mut Builder) -> Result<Option<Outputs>, OpError> {
    let formula = Expr::input(0).max(0.0);
    one(b.map(&formula, &[node.input(0)?])?)
}

fn cases() -> Vec<Case> {
    let (x, y) = (tensor(&[5], &[-2.0f32, -0.25, 0.0, 0.75, 3.5]), tensor(&[5], &[0.0f32, 0.0, 0.0, 0.75, 3.5]));
    vec![Case::new("defaults", &OPERATOR, 14).input(x).output(y)]
}
