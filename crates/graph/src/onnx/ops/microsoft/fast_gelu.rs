use crate::onnx::case::tensor;
use crate::onnx::ops::common::one;
use crate::onnx::{Case, OnnxNode, Operator, Outputs};
use crate::ops::{Expr, Unary};
use crate::{Builder, OpError};

/// Gaussian error linear unit by tanh, of x or of x plus a bias (ONNX Runtime FastGelu).
pub static OPERATOR: Operator = Operator::in_domain("com.microsoft", "FastGelu").lower(lower).cases(cases);

fn lower(node: &OnnxNode, b: &mut Builder) -> Result<Option<Outputs>, OpError> {
    let x = node.input(0)?;
    match node.optional(1) {
        Some(bias) => one(b.map(&(Expr::input(0) + Expr::input(1)).apply(Unary::GeluTanh), &[x, bias])?),
        None => one(b.unary(Unary::GeluTanh, x)?),
    }
}

fn cases() -> Vec<Case> {
    vec![
        Case::new("with a bias", &OPERATOR, 1)
            .input(tensor(&[2, 3], &[1.48f32, -1.15, -1.69, 0.82, -1.02, -0.01]))
            .input(tensor(&[3], &[0.84f32, -1.64, -2.11]))
            .output(tensor(
                &[2, 3],
                &[2.2967558f32, -0.006885775, -0.00017610192, 1.5794055, -0.009920767, -0.03584538],
            ))
            .within(1e-4, 1e-5),
        Case::new("alone", &OPERATOR, 1)
            .input(tensor(&[2], &[-2.0f32, 0.5]))
            .output(tensor(&[2], &[-0.045402348f32, 0.345714]))
            .within(1e-4, 1e-5),
    ]
}
