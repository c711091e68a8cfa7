use crate::onnx::case::tensor;
use crate::onnx::ops::common::evaluate_by_lowering;
use crate::onnx::ops::quantize_linear::lower;
use crate::onnx::{Attribute, Case, Operator};

/// Quantization per tensor or axis, as ONNX's operator of that name with more datatypes (ONNX Runtime
/// QuantizeLinear).
pub static OPERATOR: Operator =
    Operator::in_domain("com.microsoft", "QuantizeLinear").lower(lower).evaluate(evaluate_by_lowering).cases(cases);

fn cases() -> Vec<Case> {
    vec![
        Case::new("per axis", &OPERATOR, 1)
            .attribute("axis", Attribute::Int(0))
            .input(tensor(&[2, 3], &[1.44f32, -0.68, 0.2, -0.46, 0.13, -1.19]))
            .input(tensor(&[2], &[0.02f32, 0.01]))
            .input(tensor(&[2], &[100u8, 128]))
            .output(tensor(&[2, 3], &[172u8, 66, 110, 82, 141, 9])),
    ]
}
