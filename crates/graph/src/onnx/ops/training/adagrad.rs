use super::steps::{lower_steps, number};
use crate::onnx::case::tensor;
use crate::onnx::{Attribute, Case, OnnxNode, Operator, Outputs};
use crate::ops::Unary;
use crate::{Builder, OpError};

/// A step of AdaGrad (ai.onnx.preview.training Adagrad, opset 1).
pub static OPERATOR: Operator = Operator::in_domain("ai.onnx.preview.training", "Adagrad").lower(lower).cases(cases);

fn lower(node: &OnnxNode, b: &mut Builder) -> Result<Option<Outputs>, OpError> {
    let decay = number(node, "decay_factor", 0.0)?;
    let epsilon = number(node, "epsilon", 1e-6)?;
    let norm = number(node, "norm_coefficient", 0.0)?;
    lower_steps(node, b, 1, |t| {
        let rate = t.rate / (t.step * decay + 1.0);
        let gradient = t.x.clone() * norm + t.gradient;
        let squares = t.states[0].clone() + gradient.clone() * gradient.clone();
        let x = t.x - rate * gradient / (squares.apply(Unary::Sqrt) + epsilon);
        vec![x, squares]
    })
}

fn cases() -> Vec<Case> {
    let case = Case::new("one step", &OPERATOR, 1)
        .attribute("epsilon", Attribute::Float(0.0))
        .input(tensor(&[], &[0.5f32]))
        .input(tensor(&[], &[0i64]))
        .input(tensor(&[2], &[1f32, 2.0]))
        .input(tensor(&[2], &[3f32, -4.0]))
        .input(tensor(&[2], &[16f32, 9.0]));
    vec![case.output(tensor(&[2], &[0.7f32, 2.4])).output(tensor(&[2], &[25f32, 25.0]))]
}
