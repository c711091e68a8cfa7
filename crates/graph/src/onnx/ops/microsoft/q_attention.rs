use super::attention::{Rest, attend};
use super::mat_mul_integer_to_float::lower_scaled;
use crate::onnx::case::tensor;
use crate::onnx::ops::common::evaluate_by_lowering;
use crate::onnx::{Attribute, Case, OnnxNode, Operator, Outputs};
use crate::{Builder, OpError};

/// Attention whose projection is a product of quantized matrices (ONNX Runtime QAttention).
pub static OPERATOR: Operator =
    Operator::in_domain("com.microsoft", "QAttention").lower(lower).evaluate(evaluate_by_lowering).cases(cases);

fn lower(node: &OnnxNode, b: &mut Builder) -> Result<Option<Outputs>, OpError> {
    let matrices = [node.input(0)?, node.input(1)?];
    let scales = [node.input(3)?, node.input(4)?];
    let zero_points = [node.optional(6), node.optional(7)];
    let Some(projected) = lower_scaled(b, matrices, scales, zero_points, node.optional(2))? else { return Ok(None) };
    attend(node, b, projected, Rest { mask: node.optional(5), past: node.optional(8), bias: None })
}

fn cases() -> Vec<Case> {
    vec![
        Case::new("two heads", &OPERATOR, 1)
            .attribute("num_heads", Attribute::Int(2))
            .input(tensor(&[1, 2, 4], &[186u8, 36, 98, 31, 6, 83, 245, 143]))
            .input(tensor(
                &[4, 12],
                &[
                    181u8, 58, 52, 230, 186, 124, 71, 219, 119, 13, 219, 106, 114, 97, 73, 153, 77, 129, 19, 212, 55,
                    154, 69, 47, 44, 180, 16, 203, 118, 115, 54, 91, 188, 227, 235, 158, 69, 19, 145, 140, 129, 134,
                    19, 100, 31, 218, 225, 210,
                ],
            ))
            .input(tensor(&[12], &[-0.63f32, -0.44, 1.21, 2.24, 2.0, 0.06, 0.22, 1.53, -0.12, -0.98, 0.12, 0.45]))
            .input(tensor(&[], &[0.01f32]))
            .input(tensor(&[], &[0.01f32]))
            .input(tensor(&[1], &[2i32]))
            .input(tensor(&[], &[120u8]))
            .input(tensor(&[], &[125u8]))
            .output(tensor(
                &[1, 2, 4],
                &[0.99497163f32, -1.2408625, 0.08395786, 0.16001888, 0.81013256, 1.2541196, 0.09309069, 0.17651941],
            ))
            .within(1e-3, 1e-5),
    ]
}
