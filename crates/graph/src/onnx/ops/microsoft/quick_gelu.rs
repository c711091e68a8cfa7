use crate::onnx::case::tensor;
use crate::onnx::ops::common::one;
use crate::onnx::{Attribute, Case, OnnxNode, Operator, Outputs};
use crate::ops::{Expr, Unary};
use crate::{Builder, OpError};

/// `x · sigmoid(αx)` (ONNX Runtime QuickGelu).
pub static OPERATOR: Operator = Operator::in_domain("com.microsoft", "QuickGelu").lower(lower).cases(cases);

fn lower(node: &OnnxNode, b: &mut Builder) -> Result<Option<Outputs>, OpError> {
    let alpha = node.attributes.float_or("alpha", 1.702)?;
    let x = Expr::input(0);
    one(b.map(&(x.clone() * (x * alpha).apply(Unary::Sigmoid)), &[node.input(0)?])?)
}

fn cases() -> Vec<Case> {
    vec![
        Case::new("values", &OPERATOR, 1)
            .input(tensor(&[5], &[-2.0f32, -0.5, 0.0, 1.0, 3.0]))
            .output(tensor(&[5], &[-0.06434137f32, -0.14961158, 0.0, 0.84579575, 2.9819288])),
        Case::new("another factor", &OPERATOR, 1)
            .attribute("alpha", Attribute::Float(1.0))
            .input(tensor(&[2], &[-2.0f32, -0.5]))
            .output(tensor(&[2], &[-0.23840582f32, -0.18877035])),
    ]
}
