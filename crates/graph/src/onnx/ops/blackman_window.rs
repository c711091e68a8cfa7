use super::common::lower_cosine_window;
use crate::onnx::case::tensor;
use crate::onnx::{Attribute, Case, Operator};

/// Blackman window (ONNX BlackmanWindow, opset 17).
pub static OPERATOR: Operator =
    Operator::new("BlackmanWindow").lower(|node, b| lower_cosine_window(node, b, &[0.42, -0.5, 0.08])).cases(cases);

fn cases() -> Vec<Case> {
    vec![
        Case::new("symmetric", &OPERATOR, 17)
            .attribute("periodic", Attribute::Int(0))
            .input(tensor(&[], &[3i64]))
            .output(tensor(&[3], &[0.0f32, 1.0, 0.0])),
    ]
}
