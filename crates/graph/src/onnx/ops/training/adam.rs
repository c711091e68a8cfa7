use super::steps::{lower_steps, number};
use crate::onnx::case::tensor;
use crate::onnx::{Attribute, Case, OnnxNode, Operator, Outputs};
use crate::ops::{Binary, Expr, Unary};
use crate::{Builder, OpError};

/// A step of Adam (ai.onnx.preview.training Adam, opset 1).
pub static OPERATOR: Operator = Operator::in_domain("ai.onnx.preview.training", "Adam").lower(lower).cases(cases);

fn lower(node: &OnnxNode, b: &mut Builder) -> Result<Option<Outputs>, OpError> {
    let (alpha, beta) = (number(node, "alpha", 0.9)?, number(node, "beta", 0.999)?);
    let epsilon = number(node, "epsilon", 1e-6)?;
    let (norm, norm_post) = (number(node, "norm_coefficient", 0.0)?, number(node, "norm_coefficient_post", 0.0)?);
    lower_steps(node, b, 2, |t| {
        let gradient = t.x.clone() * norm + t.gradient;
        let mean = t.states[0].clone() * alpha + gradient.clone() * (1.0 - alpha);
        let squares = t.states[1].clone() * beta + gradient.clone() * gradient * (1.0 - beta);
        // What is left of the states' start at zero after so many steps.
        let left = |base: f64| Expr::number(1.0) - Expr::number(base).with(Binary::Pow, &t.step);
        let corrected = t.rate.clone() * left(beta).apply(Unary::Sqrt) / left(alpha);
        let rate = t.step.greater(0.0).select(corrected, t.rate);
        let x = t.x - rate * mean.clone() / (squares.apply(Unary::Sqrt) + epsilon);
        vec![x * (1.0 - norm_post), mean, squares]
    })
}

fn cases() -> Vec<Case> {
    let case = Case::new("the first step", &OPERATOR, 1)
        .attribute("alpha", Attribute::Float(0.5))
        .attribute("beta", Attribute::Float(0.75))
        .attribute("epsilon", Attribute::Float(0.0))
        .input(tensor(&[], &[0.5f32]))
        .input(tensor(&[], &[0i64]))
        .input(tensor(&[1], &[1f32]))
        .input(tensor(&[1], &[4f32]))
        .input(tensor(&[1], &[0f32]))
        .input(tensor(&[1], &[0f32]));
    vec![case.output(tensor(&[1], &[0.5f32])).output(tensor(&[1], &[2f32])).output(tensor(&[1], &[4f32]))]
}
