use super::common::{evaluate_by_lowering, negative_log_likelihood};
use crate::onnx::case::tensor;
use crate::onnx::{Attribute, Case, OnnxNode, Operator, Outputs};
use crate::{Builder, OpError};
use smallvec::smallvec;

/// Loss of log probabilities under targets (ONNX NegativeLogLikelihoodLoss, opset 22).
pub static OPERATOR: Operator =
    Operator::new("NegativeLogLikelihoodLoss").lower(lower).evaluate(evaluate_by_lowering).cases(cases);

fn lower(node: &OnnxNode, b: &mut Builder) -> Result<Option<Outputs>, OpError> {
    let loss = negative_log_likelihood(node, b, node.input(0)?, node.input(1)?, node.optional(2))?;
    Ok(loss.map(|loss| smallvec![loss]))
}

fn cases() -> Vec<Case> {
    let case = |name| {
        let scores = tensor(&[2, 2], &[-1f32, -2.0, -3.0, -4.0]);
        Case::new(name, &OPERATOR, 22).input(scores)
    };
    let weights = || tensor(&[2], &[1f32, 3.0]);
    let reduction = |name: &str| Attribute::String(name.as_bytes().to_vec());
    vec![
        case("per sample")
            .attribute("reduction", reduction("none"))
            .input(tensor(&[2], &[1i64, 0]))
            .output(tensor(&[2], &[2f32, 3.0])),
        case("weighted mean").input(tensor(&[2], &[1i64, 0])).input(weights()).output(tensor(&[], &[2.25f32])),
        case("a target left out")
            .attribute("ignore_index", Attribute::Int(-7))
            .input(tensor(&[2], &[-7i64, 1]))
            .input(weights())
            .output(tensor(&[], &[4f32])),
    ]
}
