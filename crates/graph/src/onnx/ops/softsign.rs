use super::common::one;
use crate::onnx::case::tensor;
use crate::onnx::{Case, OnnxNode, Operator, Outputs};
use crate::ops::{Expr, Unary};
use crate::{Builder, OpError};

/// `x / (1 + |x|)` (ONNX Softsign, opset 22).
pub static OPERATOR: Operator = Operator::new("Softsign").lower(lower).cases(cases);

fn lower(node: &OnnxNode, b: &mut Builder) -> Result<Option<Outputs>, OpError> {
    let x = Expr::input(0);
    let formula = x.clone() / (x.apply(Unary::Abs) + 1.0);
    one(b.map(&formula, &[node.input(0)?])?)
}

fn cases() -> Vec<Case> {
    let (x, y) = (
        tensor(&[5], &[-2.0f32, -0.25, 0.0, 0.75, 3.5]),
        tensor(&[5], &[-0.6666667f32, -0.2, 0.0, 0.42857143, 0.7777778]),
    );
    vec![Case::new("defaults", &OPERATOR, 22).input(x).output(y)]
}
