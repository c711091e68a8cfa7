use super::common::one;
use crate::onnx::case::tensor;
use crate::onnx::{Case, OnnxNode, Operator, Outputs};
use crate::ops::Expr;
use crate::{Builder, OpError};

/// `αx` below zero, x above (ONNX LeakyRelu, opset 16).
pub static OPERATOR: Operator = Operator::new("LeakyRelu").lower(lower).cases(cases);

fn lower(node: &OnnxNode, b: &mut Builder) -> Result<Option<Outputs>, OpError> {
    let alpha = node.attributes.float_or("alpha", 0.01)?;
    let x = Expr::input(0);
    let formula = x.less(0.0).select(x.clone() * alpha, x);
    one(b.map(&formula, &[node.input(0)?])?)
}

fn cases() -> Vec<Case> {
    let (x, y) = (tensor(&[5], &[-2.0f32, -0.25, 0.0, 0.75, 3.5]), tensor(&[5], &[-0.02f32, -0.0025, 0.0, 0.75, 3.5]));
    vec![Case::new("defaults", &OPERATOR, 16).input(x).output(y)]
}
