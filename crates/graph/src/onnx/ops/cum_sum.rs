use super::common::lower_cumulative;
use crate::onnx::case::tensor;
use crate::onnx::{Attribute, Case, Operator};
use crate::ops::CumulativeKind;

/// Running sum along an axis (ONNX CumSum, opset 14).
pub static OPERATOR: Operator =
    Operator::new("CumSum").lower(|node, b| lower_cumulative(node, b, CumulativeKind::Sum)).cases(cases);

fn cases() -> Vec<Case> {
    vec![
        Case::new("from the end, without itself", &OPERATOR, 14)
            .attribute("exclusive", Attribute::Int(1))
            .attribute("reverse", Attribute::Int(1))
            .input(tensor(&[3], &[1.0f32, 2.0, 3.0]))
            .input(tensor(&[], &[0i64]))
            .output(tensor(&[3], &[5.0f32, 3.0, 0.0])),
    ]
}
