use super::common::lower_cosine_window;
use crate::onnx::case::tensor;
use crate::onnx::{Case, Operator};

/// Hamming window (ONNX HammingWindow, opset 17).
pub static OPERATOR: Operator = Operator::new("HammingWindow")
    .lower(|node, b| lower_cosine_window(node, b, &[25.0 / 46.0, -21.0 / 46.0]))
    .cases(cases);

fn cases() -> Vec<Case> {
    vec![
        Case::new("periodic", &OPERATOR, 17).input(tensor(&[], &[2i64])).output(tensor(&[2], &[0.086_956_52_f32, 1.0])),
    ]
}
