use super::common::{evaluate_by_lowering, one, same_dtype};
use crate::onnx::case::tensor;
use crate::onnx::{Attribute, Case, OnnxNode, Operator, Outputs};
use crate::ops::{Op, Rope};
use crate::{Builder, OpError};

/// Rotary position embedding of `[B, H, S, D]` or `[B, S, H · D]` (ONNX RotaryEmbedding, opset 23).
pub static OPERATOR: Operator =
    Operator::new("RotaryEmbedding").lower(lower).evaluate(evaluate_by_lowering).infer(same_dtype).cases(cases);

fn lower(node: &OnnxNode, b: &mut Builder) -> Result<Option<Outputs>, OpError> {
    let x = node.input(0)?;
    let (cos, sin, positions) = (node.input(1)?, node.input(2)?, node.optional(3));
    let rotary_dim = node.attributes.int_or("rotary_embedding_dim", 0)?;
    let odd = || OpError::invalid(format!("rotary_embedding_dim is {rotary_dim}; it must be even and not negative"));
    let rotary_dim = usize::try_from(rotary_dim).ok().filter(|size| size % 2 == 0).ok_or_else(odd)?;
    let op = Op::Rope(Rope { interleaved: node.attributes.flag_or("interleaved", false)?, rotary_dim });
    let rest = [Some(cos), Some(sin), positions];
    let inputs = |x| std::iter::once(Some(x)).chain(rest).collect::<Vec<_>>();
    match b.rank(x) {
        None => Ok(None),
        Some(4) => one(b.add_with_optional(op, &inputs(x))?),
        Some(3) => {
            let heads = node.attributes.required("num_heads", node.attributes.int("num_heads")?)?;
            if heads <= 0 {
                return Err(OpError::invalid(format!("num_heads is {heads}; it must be positive")));
            }
            let split = b.reshape(x, &[0, 0, heads, -1])?;
            let by_head = b.transpose(split, &[0, 2, 1, 3])?;
            let turned = b.add_with_optional(op, &inputs(by_head))?;
            let by_place = b.transpose(turned, &[0, 2, 1, 3])?;
            one(b.reshape(by_place, &[0, 0, -1])?)
        }
        Some(rank) => Err(OpError::invalid(format!("the input has {rank} dimensions instead of 3 or 4"))),
    }
}

fn cases() -> Vec<Case> {
    vec![
        Case::new("a quarter turn of one head", &OPERATOR, 23)
            .attribute("num_heads", Attribute::Int(1))
            .input(tensor(&[1, 1, 2], &[3.0f32, 4.0]))
            .input(tensor(&[1, 1], &[0.0f32]))
            .input(tensor(&[1, 1], &[1.0f32]))
            .input(tensor(&[1, 1], &[0i64]))
            .output(tensor(&[1, 1, 2], &[-4.0f32, 3.0])),
    ]
}
