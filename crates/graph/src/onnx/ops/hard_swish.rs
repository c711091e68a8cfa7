use super::common::one;
use crate::onnx::case::tensor;
use crate::onnx::{Case, OnnxNode, Operator, Outputs};
use crate::ops::Expr;
use crate::{Builder, OpError};

/// `x · max(0, min(1, x/6 + 1/2))` (ONNX HardSwish, opset 22).
pub static OPERATOR: Operator = Operator::new("HardSwish").lower(lower).cases(cases);

fn lower(node: &OnnxNode, b: &mut Builder) -> Result<Option<Outputs>, OpError> {
    let x = Expr::input(0);
    let formula = x.clone() * (x * (1.0 / 6.0) + 0.5).min(1.0).max(0.0);
    one(b.map(&formula, &[node.input(0)?])?)
}

fn cases() -> Vec<Case> {
    let (x, y) = (
        tensor(&[5], &[-2.0f32, -0.25, 0.0, 0.75, 3.5]),
        tensor(&[5], &[-0.33333334f32, -0.114583336, 0.0, 0.46875, 3.5]),
    );
    vec![Case::new("defaults", &OPERATOR, 22).input(x).output(y)]
}
