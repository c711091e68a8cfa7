use crate::onnx::case::tensor;
use crate::onnx::ops::common::{evaluate_by_lowering, same_dtype};
use crate::onnx::ops::trilu::lower;
use crate::onnx::{Case, Operator};

/// ONNX's Trilu, before ONNX had it (ONNX Runtime Trilu).
pub static OPERATOR: Operator = Operator::in_domain("com.microsoft", "Trilu")
    .lower(lower)
    .evaluate(evaluate_by_lowering)
    .infer(same_dtype)
    .cases(cases);

fn cases() -> Vec<Case> {
    vec![
        Case::new("upper", &OPERATOR, 1)
            .input(tensor(&[2, 3], &[-0.2f32, -1.04, 0.32, -1.25, -1.11, 1.28]))
            .output(tensor(&[2, 3], &[-0.2f32, -1.04, 0.32, 0.0, -1.11, 1.28])),
    ]
}
