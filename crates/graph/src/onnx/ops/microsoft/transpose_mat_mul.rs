use super::fused_mat_mul::lower;
use crate::onnx::case::tensor;
use crate::onnx::ops::common::evaluate_by_lowering;
use crate::onnx::{Attribute, Case, Operator};

/// The forerunner of FusedMatMul (ONNX Runtime TransposeMatMul).
pub static OPERATOR: Operator =
    Operator::in_domain("com.microsoft", "TransposeMatMul").lower(lower).evaluate(evaluate_by_lowering).cases(cases);

fn cases() -> Vec<Case> {
    vec![
        Case::new("transposed", &OPERATOR, 1)
            .attribute("transA", Attribute::Int(1))
            .attribute("alpha", Attribute::Float(2.0))
            .input(tensor(&[3, 2], &[-0.15f32, 0.02, 1.18, 0.68, 0.38, -0.56]))
            .input(tensor(&[3, 2], &[-1.38f32, 0.95, 0.97, -0.14, 0.54, 0.78]))
            .output(tensor(&[2, 2], &[3.1135998f32, -0.022599986, 0.6592, -1.026])),
    ]
}
