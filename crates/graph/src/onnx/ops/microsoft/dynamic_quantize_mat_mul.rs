use super::mat_mul_integer_to_float::lower_scaled;
use crate::onnx::case::tensor;
use crate::onnx::ops::common::evaluate_by_lowering;
use crate::onnx::ops::dynamic_quantize_linear::lower_dynamic;
use crate::onnx::{Case, OnnxNode, Operator, Outputs};
use crate::{Builder, OpError};
use smallvec::smallvec;

/// Product of a float matrix, quantized by its own range, and a quantized one, in f32 (ONNX Runtime
/// DynamicQuantizeMatMul).
pub static OPERATOR: Operator = Operator::in_domain("com.microsoft", "DynamicQuantizeMatMul")
    .lower(lower)
    .evaluate(evaluate_by_lowering)
    .cases(cases);

fn lower(node: &OnnxNode, b: &mut Builder) -> Result<Option<Outputs>, OpError> {
    let Some([a, a_scale, a_zero]) = lower_dynamic(b, node.input(0)?)? else { return Ok(None) };
    let scales = [a_scale, node.input(2)?];
    let y = lower_scaled(b, [a, node.input(1)?], scales, [Some(a_zero), node.optional(3)], node.optional(4))?;
    Ok(y.map(|y| smallvec![y]))
}

fn cases() -> Vec<Case> {
    vec![
        Case::new("zero point and bias", &OPERATOR, 1)
            .input(tensor(&[2, 3], &[0.65f32, -0.02, 0.67, -0.34, 1.05, -0.01]))
            .input(tensor(&[3, 2], &[61u8, 14, 6, 183, 94, 204]))
            .input(tensor(&[], &[0.01f32]))
            .input(tensor(&[], &[120u8]))
            .input(tensor(&[2], &[1.0f32, -1.0]))
            .output(tensor(&[2, 2], &[0.46782082f32, -1.1381278, 0.0029067397, 0.011865377]))
            .within(1e-3, 1e-3),
    ]
}
