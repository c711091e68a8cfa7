use super::common::{evaluate_by_lowering, lower_recurrent, same_dtype};
use crate::onnx::case::tensor;
use crate::onnx::{Attribute, Case, Operator};
use crate::ops::RnnKind;

/// Plain recurrent layer (ONNX RNN, opset 22; `layout` came with 14).
pub static OPERATOR: Operator = Operator::new("RNN")
    .lower(|node, b| lower_recurrent(node, b, RnnKind::Rnn, &["Tanh"]))
    .evaluate(evaluate_by_lowering)
    .infer(same_dtype)
    .cases(cases);

fn cases() -> Vec<Case> {
    vec![
        Case::new("two steps of h' = relu(x + 2h)", &OPERATOR, 14)
            .attribute("hidden_size", Attribute::Int(1))
            .attribute("activations", Attribute::Strings(vec!["Relu".into()]))
            .input(tensor(&[2, 1, 1], &[1.0f32, 3.0]))
            .input(tensor(&[1, 1, 1], &[1.0f32]))
            .input(tensor(&[1, 1, 1], &[2.0f32]))
            .output(tensor(&[2, 1, 1, 1], &[1.0f32, 5.0]))
            .output(tensor(&[1, 1, 1], &[5.0f32])),
    ]
}
