use crate::onnx::case::tensor;
use crate::onnx::ops::common::evaluate_by_lowering;
use crate::onnx::ops::dequantize_linear::lower;
use crate::onnx::{Attribute, Case, Operator};

/// Dequantization per tensor or axis, as ONNX's operator of that name with more datatypes (ONNX Runtime
/// DequantizeLinear).
pub static OPERATOR: Operator =
    Operator::in_domain("com.microsoft", "DequantizeLinear").lower(lower).evaluate(evaluate_by_lowering).cases(cases);

fn cases() -> Vec<Case> {
    vec![
        Case::new("per axis", &OPERATOR, 1)
            .attribute("axis", Attribute::Int(1))
            .input(tensor(&[2, 3], &[121i8, 114, -74, -127, 43, -125]))
            .input(tensor(&[3], &[0.02f32, 0.01, 0.5]))
            .input(tensor(&[3], &[0i8, 1, -3]))
            .output(tensor(&[2, 3], &[2.4199998f32, 1.13, -35.5, -2.54, 0.42, -61.0])),
        Case::new("i32", &OPERATOR, 1)
            .input(tensor(&[2], &[100i32, -2000]))
            .input(tensor(&[], &[0.01f32]))
            .input(tensor(&[], &[0i32]))
            .output(tensor(&[2], &[1.0f32, -20.0])),
    ]
}
