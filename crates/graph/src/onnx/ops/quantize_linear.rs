use super::common::{dtype_attribute, evaluate_by_lowering, one, quantization_axis};
use crate::onnx::case::tensor;
use crate::onnx::{Attribute, Case, OnnxNode, Operator, Outputs};
use crate::ops::{Op, Quantize};
use crate::{Builder, OpError};
use halimede_tensor::DType;
use smallvec::smallvec;

/// `saturate(round(x / scale) + zero_point)`, per tensor, axis or block (ONNX QuantizeLinear, opset 25).
pub static OPERATOR: Operator =
    Operator::new("QuantizeLinear").lower(lower).evaluate(evaluate_by_lowering).cases(cases);

/// Lowers ONNX's operator and ONNX Runtime's twin of it.
pub fn lower(node: &OnnxNode, b: &mut Builder) -> Result<Option<Outputs>, OpError> {
    let (x, scale, zero_point) = (node.input(0)?, node.input(1)?, node.optional(2));
    let Some((axis, block)) = quantization_axis(node, b, x, scale)? else { return Ok(None) };
    let to = match (zero_point, dtype_attribute(&node.attributes, "output_dtype")?) {
        (Some(zero_point), _) => b.dtype(zero_point)?,
        (None, Some(stated)) => stated,
        (None, None) => DType::U8,
    };
    let saturate = node.attributes.flag_or("saturate", true)?;
    let precision = dtype_attribute(&node.attributes, "precision")?;
    let mut inputs: Outputs = smallvec![x, scale];
    inputs.extend(zero_point);
    one(b.add(Op::Quantize(Quantize { to, axis, block, saturate, precision }), &inputs)?)
}

fn cases() -> Vec<Case> {
    let case = |name, opset| Case::new(name, &OPERATOR, opset);
    vec![
        case("rounds halves to even and saturates", 10)
            .input(tensor(&[6], &[0f32, 1.0, 3.0, 1000.0, -254.0, -1000.0]))
            .input(tensor(&[], &[2f32]))
            .input(tensor(&[], &[128u8]))
            .output(tensor(&[6], &[128u8, 128, 130, 255, 1, 0])),
        case("per axis", 13)
            .attribute("axis", Attribute::Int(0))
            .input(tensor(&[2, 2], &[1f32, 2.0, 3.0, 4.0]))
            .input(tensor(&[2], &[1f32, 2.0]))
            .input(tensor(&[2], &[0i8, -1]))
            .output(tensor(&[2, 2], &[1i8, 2, 1, 1])),
        case("per block", 21)
            .attribute("axis", Attribute::Int(1))
            .attribute("block_size", Attribute::Int(2))
            .attribute("output_dtype", Attribute::Int(3))
            .input(tensor(&[1, 4], &[2f32, 4.0, 6.0, -9.0]))
            .input(tensor(&[1, 2], &[2f32, 3.0]))
            .output(tensor(&[1, 4], &[1i8, 2, 2, -3])),
    ]
}
