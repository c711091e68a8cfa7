use super::common::one;
use crate::onnx::case::tensor;
use crate::onnx::{Case, OnnxNode, Operator, Outputs};
use crate::ops::{Expr, Unary};
use crate::{Builder, OpError};

/// `x · tanh(ln(1 + eˣ))` (ONNX Mish, opset 22).
pub static OPERATOR: Operator = Operator::new("Mish").lower(lower).cases(cases);

fn lower(node: &OnnxNode, b: &mut Builder) -> Result<Option<Outputs>, OpError> {
    let x = Expr::input(0);
    let formula = x.clone() * x.apply(Unary::Softplus).apply(Unary::Tanh);
    one(b.map(&formula, &[node.input(0)?])?)
}

fn cases() -> Vec<Case> {
    let (x, y) = (
        tensor(&[5], &[-2.0f32, -0.25, 0.0, 0.75, 3.5]),
        tensor(&[5], &[-0.2525015f32, -0.12992696, 0.0, 0.6100183, 3.4939907]),
    );
    vec![Case::new("defaults", &OPERATOR, 22).input(x).output(y)]
}
