use super::heads::{Heads, append, biased, columns, head_count, padding_mask, slice_at};
use crate::onnx::case::tensor;
use crate::onnx::ops::common::{AttentionMask, Size, evaluate_by_lowering, split_heads};
use crate::onnx::{Attribute, Case, OnnxNode, Operator, Outputs};
use crate::{Builder, OpError, ValueId};
use smallvec::smallvec;

/// Attention over queries, keys and values that are projected already: apart, packed into one tensor,
/// or keys and values packed (ONNX Runtime MultiHeadAttention).
pub static OPERATOR: Operator =
    Operator::in_domain("com.microsoft", "MultiHeadAttention").lower(lower).evaluate(evaluate_by_lowering).cases(cases);

fn lower(node: &OnnxNode, b: &mut Builder) -> Result<Option<Outputs>, OpError> {
    if node.optional(8).is_some() || node.optional(9).is_some() || node.wants(3) {
        return Err(OpError::unsupported("MultiHeadAttention with a shared cache, beams or scores as an output"));
    }
    let Some([q, new_k, new_v]) = inputs(node, b)? else { return Ok(None) };
    let (past_k, past_v) = (node.optional(6), node.optional(7));
    let (k, v) = (append(b, past_k, new_k)?, append(b, past_v, new_v)?);
    let heads = Heads { q, k, v, past: past_k.is_some() };
    let mut mask = match node.optional(4) {
        Some(mask) => padding_mask(node, b, mask, &heads)?,
        None => AttentionMask::default(),
    };
    if let Some(bias) = node.optional(5) {
        let keys = Size::of(b, heads.k, 2)?;
        mask.given(b, bias, keys)?;
    }
    let mut outputs: Outputs = smallvec![heads.attend(node, b, mask)?, k, v];
    outputs.truncate(node.outputs.len());
    Ok(Some(outputs))
}

/// Queries, keys and values of `[batch, heads, places, size]`; `None` where a shape is not known.
fn inputs(node: &OnnxNode, b: &mut Builder) -> Result<Option<[ValueId; 3]>, OpError> {
    let count = head_count(node)?;
    let (query, key, value) = (node.input(0)?, node.optional(1), node.optional(2));
    let bias = node.optional(3);
    // Packed tensors are [batch, places, heads, parts, size].
    let part = |b: &mut Builder, packed: ValueId, index: i64| {
        let part = slice_at(b, packed, 3, index)?;
        b.transpose(part, &[0, 2, 1, 3])
    };
    match (b.rank(query), key.map(|key| b.rank(key))) {
        (None, _) | (_, Some(None)) => Ok(None),
        (Some(5), None) if bias.is_none() => Ok(Some([part(b, query, 0)?, part(b, query, 1)?, part(b, query, 2)?])),
        (Some(3), Some(Some(key_rank))) => {
            let hidden = |b: &Builder, x: ValueId| b.fact(x).shape.as_ref().and_then(|shape| shape.last()?.known());
            let mut parts = [None; 3];
            if let Some(bias) = bias {
                let (Some(all), Some(own)) = (hidden(b, bias), hidden(b, query)) else { return Ok(None) };
                // Keys are as wide as queries; values have the rest.
                parts[0] = Some(columns(b, bias, 0, own)?);
                parts[1] = Some(columns(b, bias, own, own)?);
                parts[2] = Some(columns(b, bias, 2 * own, all - 2 * own)?);
            }
            let query = biased(b, query, parts[0])?;
            let q = split_heads(b, query, count)?;
            let key = node.input(1)?;
            match (key_rank, value) {
                (3, Some(value)) => {
                    let (key, value) = (biased(b, key, parts[1])?, biased(b, value, parts[2])?);
                    Ok(Some([q, split_heads(b, key, count)?, split_heads(b, value, count)?]))
                }
                // Keys and values of a cross attention come split, their biases added already.
                (4, Some(value)) => Ok(Some([q, key, value])),
                (5, None) => Ok(Some([q, part(b, key, 0)?, part(b, key, 1)?])),
                (rank, _) => Err(OpError::invalid(format!("a key of {rank} dimensions with these inputs"))),
            }
        }
        (rank, _) => Err(OpError::unsupported(format!(
            "MultiHeadAttention with a query of {rank:?} dimensions and these inputs"
        ))),
    }
}

fn cases() -> Vec<Case> {
    vec![
        Case::new("apart, with a bias", &OPERATOR, 1)
            .attribute("num_heads", Attribute::Int(2))
            .input(tensor(&[1, 2, 4], &[-0.83f32, -1.65, -1.44, 0.67, -0.76, -0.14, 0.21, 0.62]))
            .input(tensor(
                &[1, 3, 4],
                &[-0.33f32, 0.5, -0.89, -0.36, -1.02, 1.13, -0.03, -0.74, -0.35, -0.22, 0.7, -1.6],
            ))
            .input(tensor(
                &[1, 3, 4],
                &[-1.04f32, -0.38, 2.53, 0.96, -0.11, 0.71, 2.06, -0.23, -0.37, 1.21, 0.49, 0.67],
            ))
            .input(tensor(&[12], &[-0.51f32, 1.92, 1.71, 0.57, 0.68, -2.03, 0.64, -0.19, 0.43, 0.68, -0.34, -1.69]))
            .output(tensor(
                &[1, 2, 4],
                &[0.03382903f32, 1.2307917, 1.6126448, -1.2242645, 0.13207535, 1.2297378, 1.0435562, -1.3036543],
            ))
            .within(1e-3, 1e-5),
        Case::new("a mask and added numbers", &OPERATOR, 1)
            .attribute("num_heads", Attribute::Int(2))
            .input(tensor(&[1, 2, 4], &[-1.95f32, -0.67, -0.53, 0.66, 0.61, 1.4, -1.57, 0.75]))
            .input(tensor(
                &[1, 3, 4],
                &[-0.29f32, -0.67, 0.54, -0.92, -2.08, -0.37, -1.5, -0.65, 0.37, 0.31, 1.59, -0.2],
            ))
            .input(tensor(
                &[1, 3, 4],
                &[-1.53f32, -0.76, -0.92, -1.22, 0.44, -0.65, -1.98, 0.7, -0.11, 0.36, 0.11, 0.63],
            ))
            .no_input()
            .input(tensor(&[1, 3], &[1i32, 0, 1]))
            .input(tensor(
                &[1, 2, 2, 3],
                &[0.04f32, 1.24, 0.42, 0.39, 0.41, -1.46, -0.16, -0.26, 0.21, -1.36, 1.63, 0.1],
            ))
            .output(tensor(
                &[1, 2, 4],
                &[-1.1465188f32, -0.457536, -0.3251767, -0.15162803, -1.025261, -0.3618961, -0.23722968, 0.0063350378],
            ))
            .within(1e-3, 1e-5),
        Case::new("what came before, causal", &OPERATOR, 1)
            .attribute("num_heads", Attribute::Int(2))
            .attribute("unidirectional", Attribute::Int(1))
            .input(tensor(&[1, 2, 4], &[-1.21f32, -1.71, -0.28, -0.09, -0.72, 0.09, -0.64, 0.55]))
            .input(tensor(&[1, 2, 4], &[-0.72f32, -0.04, 0.98, 2.57, -1.01, -0.46, -0.84, 0.78]))
            .input(tensor(&[1, 2, 4], &[-1.15f32, -0.48, -0.03, -0.98, -0.96, -0.48, -2.1, -1.45]))
            .no_input()
            .no_input()
            .no_input()
            .input(tensor(&[1, 2, 1, 2], &[-0.41f32, 0.15, -0.19, -1.77]))
            .input(tensor(&[1, 2, 1, 2], &[-0.46f32, 0.8, 0.56, -0.08]))
            .output(tensor(
                &[1, 2, 4],
                &[
                    -0.8886816f32,
                    0.0047646053,
                    0.33833757,
                    -0.41812915,
                    -0.87907773,
                    -0.11032198,
                    -0.9141794,
                    -1.0825784,
                ],
            ))
            .output(tensor(
                &[1, 2, 3, 2],
                &[-0.41f32, 0.15, -0.72, -0.04, -1.01, -0.46, -0.19, -1.77, 0.98, 2.57, -0.84, 0.78],
            ))
            .output(tensor(
                &[1, 2, 3, 2],
                &[-0.46f32, 0.8, -1.15, -0.48, -0.96, -0.48, 0.56, -0.08, -0.03, -0.98, -2.1, -1.45],
            ))
            .within(1e-3, 1e-5),
    ]
}
