use super::common::lower_cosine_window;
use crate::onnx::case::tensor;
use crate::onnx::{Case, Operator};

/// Hann window (ONNX HannWindow, opset 17).
pub static OPERATOR: Operator =
    Operator::new("HannWindow").lower(|node, b| lower_cosine_window(node, b, &[0.5, -0.5])).cases(cases);

fn cases() -> Vec<Case> {
    vec![
        Case::new("periodic", &OPERATOR, 17).input(tensor(&[], &[4i32])).output(tensor(&[4], &[0.0f32, 0.5, 1.0, 0.5])),
    ]
}
