use super::common::one;
use crate::onnx::case::tensor;
use crate::onnx::{Case, OnnxNode, Operator, Outputs};
use crate::ops::Expr;
use crate::{Builder, OpError};

/// `α(eˣ - 1)` below zero, x above (ONNX Elu, opset 22).
pub static OPERATOR: Operator = Operator::new("Elu").lower(lower).cases(cases);

fn lower(node: &OnnxNode, b: &mut Builder) -> Result<Option<Outputs>, OpError> {
    let alpha = node.attributes.float_or("alpha", 1.0)?;
    let x = Expr::input(0);
    let formula = x.less(0.0).select((x.exp() - 1.0) * alpha, x);
    one(b.map(&formula, &[node.input(0)?])?)
}

fn cases() -> Vec<Case> {
    let (x, y) =
        (tensor(&[5], &[-2.0f32, -0.25, 0.0, 0.75, 3.5]), tensor(&[5], &[-0.86466473f32, -0.22119921, 0.0, 0.75, 3.5]));
    vec![Case::new("defaults", &OPERATOR, 22).input(x).output(y)]
}
