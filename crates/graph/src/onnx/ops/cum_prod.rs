use super::common::lower_cumulative;
use crate::onnx::case::tensor;
use crate::onnx::{Case, Operator};
use crate::ops::CumulativeKind;

/// Running product along an axis (ONNX CumProd, opset 26).
pub static OPERATOR: Operator =
    Operator::new("CumProd").lower(|node, b| lower_cumulative(node, b, CumulativeKind::Product)).cases(cases);

fn cases() -> Vec<Case> {
    vec![
        Case::new("along rows", &OPERATOR, 26)
            .input(tensor(&[2, 2], &[2i32, 3, 4, 5]))
            .input(tensor(&[], &[1i64]))
            .output(tensor(&[2, 2], &[2i32, 6, 4, 20])),
    ]
}
