use super::common::{evaluate_by_lowering, negative_log_likelihood};
use crate::onnx::case::tensor;
use crate::onnx::{Attribute, Case, OnnxNode, Operator, Outputs};
use crate::ops::{Op, Softmax};
use crate::{Builder, OpError};
use smallvec::smallvec;

/// Loss of scores under targets, and the log probabilities (ONNX SoftmaxCrossEntropyLoss, opset 13).
pub static OPERATOR: Operator =
    Operator::new("SoftmaxCrossEntropyLoss").lower(lower).evaluate(evaluate_by_lowering).cases(cases);

fn lower(node: &OnnxNode, b: &mut Builder) -> Result<Option<Outputs>, OpError> {
    let log_probabilities = b.add(Op::Softmax(Softmax { axis: 1, log: true }), &[node.input(0)?])?;
    let loss = negative_log_likelihood(node, b, log_probabilities, node.input(1)?, node.optional(2))?;
    Ok(loss.map(|loss| if node.wants(1) { smallvec![loss, log_probabilities] } else { smallvec![loss] }))
}

fn cases() -> Vec<Case> {
    let case = |name| {
        Case::new(name, &OPERATOR, 13).input(tensor(&[2, 2], &[0f32, 0.0, 5.0, 5.0])).input(tensor(&[2], &[1i64, 0]))
    };
    let log_half = -std::f32::consts::LN_2;
    vec![
        case("mean and log probabilities").output(tensor(&[], &[-log_half])).output(tensor(&[2, 2], &[log_half; 4])),
        case("sum, one left out")
            .attribute("reduction", Attribute::String(b"sum".to_vec()))
            .attribute("ignore_index", Attribute::Int(1))
            .output(tensor(&[], &[-log_half])),
    ]
}
