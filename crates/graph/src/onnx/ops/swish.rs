use super::common::one;
use crate::onnx::case::tensor;
use crate::onnx::{Case, OnnxNode, Operator, Outputs};
use crate::ops::{Expr, Unary};
use crate::{Builder, OpError};

/// `x · sigmoid(αx)` (ONNX Swish, opset 24).
pub static OPERATOR: Operator = Operator::new("Swish").lower(lower).cases(cases);

fn lower(node: &OnnxNode, b: &mut Builder) -> Result<Option<Outputs>, OpError> {
    let x = Expr::input(0);
    let formula = match node.attributes.float_or("alpha", 1.0)? {
        1.0 => x.apply(Unary::Silu),
        alpha => x.clone() * (x * alpha).apply(Unary::Sigmoid),
    };
    one(b.map(&formula, &[node.input(0)?])?)
}

fn cases() -> Vec<Case> {
    let (x, y) = (
        tensor(&[5], &[-2.0f32, -0.25, 0.0, 0.75, 3.5]),
        tensor(&[5], &[-0.23840584f32, -0.109455876, 0.0, 0.50938404, 3.3974073]),
    );
    vec![Case::new("defaults", &OPERATOR, 24).input(x).output(y)]
}
