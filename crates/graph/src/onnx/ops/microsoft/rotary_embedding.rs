use crate::onnx::case::tensor;
use crate::onnx::ops::common::{Size, evaluate_by_lowering, expand, one};
use crate::onnx::{Attribute, Case, OnnxNode, Operator, Outputs};
use crate::ops::{Binary, Op, Rope};
use crate::{Builder, OpError, ValueId};

/// Rotary position embedding of `[B, S, H · D]` or `[B, H, S, D]`, at positions or from an offset on
/// (ONNX Runtime RotaryEmbedding).
pub static OPERATOR: Operator =
    Operator::in_domain("com.microsoft", "RotaryEmbedding").lower(lower).evaluate(evaluate_by_lowering).cases(cases);

fn lower(node: &OnnxNode, b: &mut Builder) -> Result<Option<Outputs>, OpError> {
    let attributes = &node.attributes;
    if attributes.flag_or("is_packed_batching", false)? || attributes.float_or("scale", 1.0)? != 1.0 {
        return Err(OpError::unsupported("RotaryEmbedding with packed batching or a scale"));
    }
    let (x, positions, cos, sin) = (node.input(0)?, node.input(1)?, node.input(2)?, node.input(3)?);
    let (Some(rank), Some(_)) = (b.rank(x), b.rank(positions)) else { return Ok(None) };
    let rotary = attributes.int_or("rotary_embedding_dim", 0)?;
    let rotary_dim = usize::try_from(rotary)
        .map_err(|_| OpError::invalid(format!("rotary_embedding_dim is {rotary}; it must not be negative")))?;
    let op = Op::Rope(Rope { interleaved: attributes.flag_or("interleaved", false)?, rotary_dim });
    match rank {
        4 => {
            let positions = positions_of(b, x, positions, 2)?;
            one(b.add(op, &[x, cos, sin, positions])?)
        }
        3 => {
            let heads = heads(node, b, x, cos)?;
            let Some(heads) = heads else { return Ok(None) };
            let positions = positions_of(b, x, positions, 1)?;
            let split = b.reshape(x, &[0, 0, heads, -1])?;
            let by_head = b.transpose(split, &[0, 2, 1, 3])?;
            let turned = b.add(op, &[by_head, cos, sin, positions])?;
            let by_place = b.transpose(turned, &[0, 2, 1, 3])?;
            one(b.reshape(by_place, &[0, 0, -1])?)
        }
        rank => Err(OpError::invalid(format!("the input has {rank} dimensions instead of 3 or 4"))),
    }
}

/// The stated number of heads, or the one that heads as wide as the whole table give.
fn heads(node: &OnnxNode, b: &Builder, x: ValueId, cos: ValueId) -> Result<Option<i64>, OpError> {
    match node.attributes.int_or("num_heads", 0)? {
        0 => {
            let last = |value: ValueId| b.fact(value).shape.as_ref()?.last()?.known();
            Ok(last(x).zip(last(cos)).filter(|(_, half)| *half > 0).map(|(hidden, half)| hidden / (2 * half)))
        }
        heads if heads > 0 => Ok(Some(heads)),
        heads => Err(OpError::invalid(format!("num_heads is {heads}; it must not be negative"))),
    }
}

/// Positions `[B, S]`; a single one is the first of a run.
fn positions_of(b: &mut Builder, x: ValueId, positions: ValueId, places: usize) -> Result<ValueId, OpError> {
    if b.rank(positions) == Some(2) {
        return Ok(positions);
    }
    let (batch, length) = (Size::of(b, x, 0)?, Size::of(b, x, places)?);
    let run = length.positions(b)?;
    let run = b.binary(Binary::Add, run, positions)?;
    expand(b, run, &[batch, length])
}

fn cases() -> Vec<Case> {
    vec![
        Case::new("an offset", &OPERATOR, 1)
            .attribute("interleaved", Attribute::Int(0))
            .input(tensor(
                &[1, 2, 8],
                &[
                    1.39f32, 0.82, -0.4, -0.87, -1.89, -0.39, -0.03, -0.08, -0.09, -1.12, -0.07, -0.04, 1.29, 1.87,
                    -0.14, -0.77,
                ],
            ))
            .input(tensor(&[1], &[1i64]))
            .input(tensor(&[4, 2], &[1.0f32, 1.0, 0.5403023, 0.9950042, -0.41614684, 0.9800666, -0.9899925, 0.9553365]))
            .input(tensor(&[4, 2], &[0.0f32, 0.0, 0.84147096, 0.099833414, 0.9092974, 0.19866933, 0.14112, 0.29552022]))
            .output(tensor(
                &[1, 2, 8],
                &[
                    1.0876086f32,
                    0.9027585,
                    0.9535237,
                    -0.78379023,
                    -0.99592716,
                    -0.38006493,
                    -1.6065892,
                    -0.11853536,
                    0.101104036,
                    -1.0897279,
                    -0.05270649,
                    -0.2617123,
                    -0.40952778,
                    1.9856999,
                    1.2312542,
                    -0.3831396,
                ],
            )),
        Case::new("positions, interleaved", &OPERATOR, 1)
            .attribute("interleaved", Attribute::Int(1))
            .input(tensor(&[1, 2, 4], &[-0.06f32, -0.61, -0.74, -0.06, -1.04, 0.61, -0.1, 0.25]))
            .input(tensor(&[1, 2], &[2i64, 0]))
            .input(tensor(&[4, 2], &[1.0f32, 1.0, 0.5403023, 0.9950042, -0.41614684, 0.9800666, -0.9899925, 0.9553365]))
            .input(tensor(&[4, 2], &[0.0f32, 0.0, 0.84147096, 0.099833414, 0.9092974, 0.19866933, 0.14112, 0.29552022]))
            .output(tensor(&[1, 2, 4], &[0.5796402f32, 0.19929175, -0.71332914, -0.2058193, -1.04, 0.61, -0.1, 0.25])),
        Case::new("heads in front", &OPERATOR, 1)
            .input(tensor(
                &[1, 2, 2, 4],
                &[
                    -0.18f32, -0.73, -0.95, -0.24, -0.55, 0.23, -0.0, -1.36, 0.07, -1.34, -0.62, -0.29, -2.08, 0.09,
                    0.15, -0.16,
                ],
            ))
            .input(tensor(&[1], &[0i64]))
            .input(tensor(&[4, 2], &[1.0f32, 1.0, 0.5403023, 0.9950042, -0.41614684, 0.9800666, -0.9899925, 0.9553365]))
            .input(tensor(&[4, 2], &[0.0f32, 0.0, 0.84147096, 0.099833414, 0.9092974, 0.19866933, 0.14112, 0.29552022]))
            .output(tensor(
                &[1, 2, 2, 4],
                &[
                    -0.18f32,
                    -0.73,
                    -0.95,
                    -0.24,
                    -0.29716626,
                    0.3646244,
                    -0.46280903,
                    -1.330244,
                    0.07,
                    -1.34,
                    -0.62,
                    -0.29,
                    -1.2500494,
                    0.10552373,
                    -1.6692141,
                    -0.15021566,
                ],
            )),
    ]
}
