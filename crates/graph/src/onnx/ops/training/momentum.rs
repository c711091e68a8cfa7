use super::steps::lower_steps;
use crate::onnx::case::tensor;
use crate::onnx::{Attribute, Case, OnnxNode, Operator, Outputs};
use crate::{Builder, OpError};

/// A step of gradient descent with momentum, standard or Nesterov's (ai.onnx.preview.training Momentum,
/// opset 1).
pub static OPERATOR: Operator = Operator::in_domain("ai.onnx.preview.training", "Momentum").lower(lower).cases(cases);

fn lower(node: &OnnxNode, b: &mut Builder) -> Result<Option<Outputs>, OpError> {
    let required = |name: &str| node.attributes.required(name, node.attributes.float(name)?).map(f64::from);
    let (alpha, beta, norm) = (required("alpha")?, required("beta")?, required("norm_coefficient")?);
    let nesterov = match node.attributes.required("mode", node.attributes.text("mode")?)? {
        "standard" => false,
        "nesterov" => true,
        other => return Err(OpError::invalid(format!("mode is '{other}'; it must be standard or nesterov"))),
    };
    lower_steps(node, b, 1, |t| {
        let gradient = t.x.clone() * norm + t.gradient;
        // The first step takes the gradient whole.
        let share = t.step.greater(0.0).select(beta, 1.0);
        let momentum = t.states[0].clone() * alpha + share * gradient.clone();
        let direction = if nesterov { gradient + momentum.clone() * alpha } else { momentum.clone() };
        vec![t.x - t.rate * direction, momentum]
    })
}

fn cases() -> Vec<Case> {
    let case = |name, mode: &str| {
        Case::new(name, &OPERATOR, 1)
            .attribute("alpha", Attribute::Float(0.5))
            .attribute("beta", Attribute::Float(0.25))
            .attribute("norm_coefficient", Attribute::Float(0.0))
            .attribute("mode", Attribute::String(mode.as_bytes().to_vec()))
            .input(tensor(&[], &[0.5f32]))
            .input(tensor(&[], &[1i64]))
            .input(tensor(&[1], &[1f32]))
            .input(tensor(&[1], &[4f32]))
            .input(tensor(&[1], &[2f32]))
    };
    vec![
        case("standard", "standard").output(tensor(&[1], &[0f32])).output(tensor(&[1], &[2f32])),
        case("Nesterov's", "nesterov").output(tensor(&[1], &[-1.5f32])).output(tensor(&[1], &[2f32])),
    ]
}
