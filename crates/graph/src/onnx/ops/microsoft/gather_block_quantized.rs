use super::blocks::{middle, unpack};
use crate::onnx::case::tensor;
use crate::onnx::ops::common::{evaluate_by_lowering, one, resolve_axis};
use crate::onnx::{Attribute, Case, OnnxNode, Operator, Outputs};
use crate::ops::{Dequantize, Gather, Op};
use crate::{Builder, OpError};
use halimede_tensor::DType;

/// Slices by index of a table whose elements are stored in blocks of few bits, as numbers (ONNX Runtime
/// GatherBlockQuantized).
pub static OPERATOR: Operator = Operator::in_domain("com.microsoft", "GatherBlockQuantized")
    .lower(lower)
    .evaluate(evaluate_by_lowering)
    .cases(cases);

fn lower(node: &OnnxNode, b: &mut Builder) -> Result<Option<Outputs>, OpError> {
    let attributes = &node.attributes;
    let (data, indices, scales) = (node.input(0)?, node.input(1)?, node.input(2)?);
    let Some(rank) = b.rank(data) else { return Ok(None) };
    let axis = resolve_axis(attributes.int_or("gather_axis", 0)?, rank)?;
    let quantized_axis = resolve_axis(attributes.int_or("quantize_axis", 1)?, rank)?;
    let block = attributes.int_or("block_size", 128)?;
    let Some(block) = usize::try_from(block).ok().filter(|&block| block > 0) else {
        return Err(OpError::invalid(format!("block_size is {block}; it must be positive")));
    };
    let bits = attributes.int_or("bits", 4)?;
    // Bytes hold packed elements along the last axis, whose zero point is the middle of the range;
    // ONNX's own narrow types hold one each, with zero point 0.
    let bytes = b.dtype(data)? == DType::U8;
    let data = if bytes { unpack(b, data, bits, rank)? } else { data };
    let zero_points = match node.optional(3) {
        Some(zero_points) if bytes => Some(unpack(b, zero_points, bits, rank)?),
        None if bytes => Some(middle(b, scales, bits)?),
        other => other,
    };
    let dequantize = Op::Dequantize(Dequantize { to: None, axis: quantized_axis, block });
    let table = b.add_with_optional(dequantize, &[Some(data), Some(scales), zero_points])?;
    one(b.add(Op::Gather(Gather { axis }), &[table, indices])?)
}

fn cases() -> Vec<Case> {
    vec![
        Case::new("packed bytes", &OPERATOR, 1)
            .attribute("gather_axis", Attribute::Int(0))
            .attribute("quantize_axis", Attribute::Int(1))
            .attribute("block_size", Attribute::Int(16))
            .attribute("bits", Attribute::Int(4))
            .input(tensor(
                &[3, 8],
                &[
                    222u8, 86, 84, 78, 231, 42, 49, 61, 133, 23, 243, 70, 125, 45, 199, 172, 215, 165, 72, 131, 133,
                    203, 140, 32,
                ],
            ))
            .input(tensor(&[2], &[2i64, 0]))
            .input(tensor(&[3, 1], &[0.1f32, 0.2, 0.3]))
            .output(tensor(
                &[2, 16],
                &[
                    -0.3f32,
                    1.5,
                    -0.90000004,
                    0.6,
                    0.0,
                    -1.2,
                    -1.5,
                    0.0,
                    -0.90000004,
                    0.0,
                    0.90000004,
                    1.2,
                    1.2,
                    0.0,
                    -2.4,
                    -1.8000001,
                    0.6,
                    0.5,
                    -0.2,
                    -0.3,
                    -0.4,
                    -0.3,
                    0.6,
                    -0.4,
                    -0.1,
                    0.6,
                    0.2,
                    -0.6,
                    -0.7,
                    -0.5,
                    0.5,
                    -0.5,
                ],
            )),
    ]
}
