use crate::onnx::case::tensor;
use crate::onnx::ops::common::one;
use crate::onnx::{Case, OnnxNode, Operator, Outputs};
use crate::ops::{Expr, Unary};
use crate::{Builder, OpError};

/// Gaussian error linear unit by erf of a sum (ONNX Runtime BiasGelu).
pub static OPERATOR: Operator = Operator::in_domain("com.microsoft", "BiasGelu").lower(lower).cases(cases);

fn lower(node: &OnnxNode, b: &mut Builder) -> Result<Option<Outputs>, OpError> {
    one(b.map(&(Expr::input(0) + Expr::input(1)).apply(Unary::GeluErf), &[node.input(0)?, node.input(1)?])?)
}

fn cases() -> Vec<Case> {
    vec![
        Case::new("values", &OPERATOR, 1)
            .input(tensor(&[2, 3], &[0.83f32, 0.92, -0.46, 1.51, -1.25, 0.86]))
            .input(tensor(&[3], &[0.49f32, 0.87, 1.88]))
            .output(tensor(&[2, 3], &[1.1966888f32, 1.7242587, 1.3095185, 1.9544997, -0.13374962, 2.7315829])),
    ]
}
