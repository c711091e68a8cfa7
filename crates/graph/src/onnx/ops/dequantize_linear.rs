use super::common::{dtype_attribute, evaluate_by_lowering, one, quantization_axis};
use crate::onnx::case::tensor;
use crate::onnx::{Attribute, Case, OnnxNode, Operator, Outputs};
use crate::ops::{Dequantize, Op};
use crate::{Builder, OpError};
use smallvec::smallvec;

/// `(x - zero_point) · scale`, per tensor, axis or block (ONNX DequantizeLinear, opset 25).
pub static OPERATOR: Operator =
    Operator::new("DequantizeLinear").lower(lower).evaluate(evaluate_by_lowering).cases(cases);

/// Lowers ONNX's operator and ONNX Runtime's twin of it.
pub fn lower(node: &OnnxNode, b: &mut Builder) -> Result<Option<Outputs>, OpError> {
    let (x, scale) = (node.input(0)?, node.input(1)?);
    let Some((axis, block)) = quantization_axis(node, b, x, scale)? else { return Ok(None) };
    let to = dtype_attribute(&node.attributes, "output_dtype")?;
    let mut inputs: Outputs = smallvec![x, scale];
    inputs.extend(node.optional(2));
    one(b.add(Op::Dequantize(Dequantize { to, axis, block }), &inputs)?)
}

fn cases() -> Vec<Case> {
    let case = |name, opset| Case::new(name, &OPERATOR, opset);
    vec![
        case("per tensor", 10)
            .input(tensor(&[3], &[0u8, 128, 255]))
            .input(tensor(&[], &[2f32]))
            .input(tensor(&[], &[128u8]))
            .output(tensor(&[3], &[-256f32, 0.0, 254.0])),
        case("per axis, no zero point", 13)
            .attribute("axis", Attribute::Int(-2))
            .input(tensor(&[2, 2], &[1i8, 2, 3, -4]))
            .input(tensor(&[2], &[1f32, 0.5]))
            .output(tensor(&[2, 2], &[1f32, 2.0, 1.5, -2.0])),
        case("per block", 21)
            .attribute("block_size", Attribute::Int(2))
            .input(tensor(&[1, 4], &[1u8, 2, 3, 4]))
            .input(tensor(&[1, 2], &[2f32, 3.0]))
            .input(tensor(&[1, 2], &[0u8, 1]))
            .output(tensor(&[1, 4], &[2f32, 4.0, 6.0, 9.0])),
    ]
}
