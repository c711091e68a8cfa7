use super::heads::{biased, from_projection, head_count, padding_mask};
use crate::onnx::case::tensor;
use crate::onnx::ops::common::{AttentionMask, Size, evaluate_by_lowering, matmul};
use crate::onnx::{Attribute, Case, OnnxNode, Operator, Outputs};
use crate::{Builder, OpError, ValueId};
use smallvec::smallvec;

/// Projection to queries, keys and values by one matrix, and attention over them (ONNX Runtime
/// Attention).
pub static OPERATOR: Operator =
    Operator::in_domain("com.microsoft", "Attention").lower(lower).evaluate(evaluate_by_lowering).cases(cases);

fn lower(node: &OnnxNode, b: &mut Builder) -> Result<Option<Outputs>, OpError> {
    let Some(projected) = matmul(b, node.input(0)?, node.input(1)?)? else { return Ok(None) };
    let projected = biased(b, projected, node.optional(2))?;
    attend(node, b, projected, Rest { mask: node.optional(3), past: node.optional(4), bias: node.optional(5) })
}

/// What an attention reads beside its projection.
pub(super) struct Rest {
    /// Lengths or a mask of keys.
    pub mask: Option<ValueId>,
    /// Keys and values that came before.
    pub past: Option<ValueId>,
    /// Numbers added to the scores.
    pub bias: Option<ValueId>,
}

/// The attention over a projection of `[batch, places, q + k + v]`.
pub(super) fn attend(
    node: &OnnxNode,
    b: &mut Builder,
    projected: ValueId,
    rest: Rest,
) -> Result<Option<Outputs>, OpError> {
    if node.attributes.flag_or("do_rotary", false)? || node.attributes.flag_or("past_present_share_buffer", false)? {
        return Err(OpError::unsupported("Attention with do_rotary or past_present_share_buffer"));
    }
    let sizes = match node.attributes.ints("qkv_hidden_sizes")? {
        Some(&[q, k, v]) => [q, k, v],
        Some(other) => return Err(OpError::invalid(format!("qkv_hidden_sizes is {other:?}; three sizes are needed"))),
        None => match b.fact(projected).shape.as_ref().and_then(|shape| shape.last()?.known()) {
            Some(all) => [all / 3; 3],
            None => return Ok(None),
        },
    };
    let (heads, present) = from_projection(b, projected, sizes, head_count(node)?, rest.past)?;
    let mut mask = match rest.mask {
        Some(mask) => padding_mask(node, b, mask, &heads)?,
        None => AttentionMask::default(),
    };
    if let Some(bias) = rest.bias {
        let keys = Size::of(b, heads.k, 2)?;
        mask.given(b, bias, keys)?;
    }
    let mut outputs: Outputs = smallvec![heads.attend(node, b, mask)?, present];
    outputs.truncate(node.outputs.len());
    Ok(Some(outputs))
}

fn cases() -> Vec<Case> {
    vec![
        Case::new("two heads, lengths", &OPERATOR, 1)
            .attribute("num_heads", Attribute::Int(2))
            .input(tensor(
                &[1, 3, 4],
                &[-0.42f32, -0.37, -0.98, -0.27, -0.55, 0.09, -1.2, 0.24, 0.14, -0.14, -0.44, 0.55],
            ))
            .input(tensor(
                &[4, 12],
                &[
                    -1.66f32, 0.46, 0.24, 0.28, 0.38, -0.65, -0.26, 0.64, 0.43, 0.21, -1.51, 0.54, 1.17, 1.01, 0.23,
                    -1.56, 0.94, -0.15, -2.53, 0.38, -1.49, -1.3, -0.63, 1.27, -0.37, 0.27, 1.75, 1.59, -0.1, -0.24,
                    -1.26, -0.69, 0.43, 0.4, 0.11, 0.99, -0.77, -0.06, 0.73, 0.58, 1.07, 0.4, -0.31, 0.36, -1.0, -1.64,
                    0.58, -0.06,
                ],
            ))
            .input(tensor(&[12], &[0.31f32, -1.7, -0.37, -0.6, -0.86, -2.26, -0.33, 0.9, 0.38, -0.6, -0.01, 0.76]))
            .input(tensor(&[1], &[2i32]))
            .output(tensor(
                &[1, 3, 4],
                &[
                    -0.16899344f32,
                    -1.0410308,
                    0.72990125,
                    -0.6863905,
                    -0.2829956,
                    -1.1722955,
                    0.7200965,
                    -0.7010123,
                    0.12379924,
                    -0.70390254,
                    0.695582,
                    -0.73757076,
                ],
            ))
            .within(1e-3, 1e-5),
        Case::new("a mask per key", &OPERATOR, 1)
            .attribute("num_heads", Attribute::Int(2))
            .input(tensor(
                &[1, 3, 4],
                &[-0.42f32, -0.37, -0.98, -0.27, -0.55, 0.09, -1.2, 0.24, 0.14, -0.14, -0.44, 0.55],
            ))
            .input(tensor(
                &[4, 12],
                &[
                    -1.66f32, 0.46, 0.24, 0.28, 0.38, -0.65, -0.26, 0.64, 0.43, 0.21, -1.51, 0.54, 1.17, 1.01, 0.23,
                    -1.56, 0.94, -0.15, -2.53, 0.38, -1.49, -1.3, -0.63, 1.27, -0.37, 0.27, 1.75, 1.59, -0.1, -0.24,
                    -1.26, -0.69, 0.43, 0.4, 0.11, 0.99, -0.77, -0.06, 0.73, 0.58, 1.07, 0.4, -0.31, 0.36, -1.0, -1.64,
                    0.58, -0.06,
                ],
            ))
            .input(tensor(&[12], &[0.31f32, -1.7, -0.37, -0.6, -0.86, -2.26, -0.33, 0.9, 0.38, -0.6, -0.01, 0.76]))
            .input(tensor(&[1, 3], &[1i32, 1, 0]))
            .output(tensor(
                &[1, 3, 4],
                &[
                    -0.16899344f32,
                    -1.0410308,
                    0.72990125,
                    -0.6863905,
                    -0.2829956,
                    -1.1722955,
                    0.7200965,
                    -0.7010123,
                    0.12379924,
                    -0.70390254,
                    0.695582,
                    -0.73757076,
                ],
            ))
            .within(1e-3, 1e-5),
        Case::new("causal", &OPERATOR, 1)
            .attribute("num_heads", Attribute::Int(1))
            .attribute("unidirectional", Attribute::Int(1))
            .input(tensor(
                &[1, 3, 4],
                &[-0.42f32, -0.37, -0.98, -0.27, -0.55, 0.09, -1.2, 0.24, 0.14, -0.14, -0.44, 0.55],
            ))
            .input(tensor(
                &[4, 12],
                &[
                    -1.66f32, 0.46, 0.24, 0.28, 0.38, -0.65, -0.26, 0.64, 0.43, 0.21, -1.51, 0.54, 1.17, 1.01, 0.23,
                    -1.56, 0.94, -0.15, -2.53, 0.38, -1.49, -1.3, -0.63, 1.27, -0.37, 0.27, 1.75, 1.59, -0.1, -0.24,
                    -1.26, -0.69, 0.43, 0.4, 0.11, 0.99, -0.77, -0.06, 0.73, 0.58, 1.07, 0.4, -0.31, 0.36, -1.0, -1.64,
                    0.58, -0.06,
                ],
            ))
            .input(tensor(&[12], &[0.31f32, -1.7, -0.37, -0.6, -0.86, -2.26, -0.33, 0.9, 0.38, -0.6, -0.01, 0.76]))
            .output(tensor(
                &[1, 3, 4],
                &[
                    0.5993f32,
                    -0.15640002,
                    0.5929,
                    -0.8907001,
                    -0.41112787,
                    -1.3198298,
                    0.7266077,
                    -0.69130224,
                    -0.04392937,
                    -1.1371789,
                    0.42357978,
                    -0.32457113,
                ],
            ))
            .within(1e-3, 1e-5),
        Case::new("what came before", &OPERATOR, 1)
            .attribute("num_heads", Attribute::Int(2))
            .input(tensor(&[1, 1, 4], &[-2.76f32, -0.12, 0.54, 0.68]))
            .input(tensor(
                &[4, 12],
                &[
                    -1.66f32, 0.46, 0.24, 0.28, 0.38, -0.65, -0.26, 0.64, 0.43, 0.21, -1.51, 0.54, 1.17, 1.01, 0.23,
                    -1.56, 0.94, -0.15, -2.53, 0.38, -1.49, -1.3, -0.63, 1.27, -0.37, 0.27, 1.75, 1.59, -0.1, -0.24,
                    -1.26, -0.69, 0.43, 0.4, 0.11, 0.99, -0.77, -0.06, 0.73, 0.58, 1.07, 0.4, -0.31, 0.36, -1.0, -1.64,
                    0.58, -0.06,
                ],
            ))
            .input(tensor(&[12], &[0.31f32, -1.7, -0.37, -0.6, -0.86, -2.26, -0.33, 0.9, 0.38, -0.6, -0.01, 0.76]))
            .no_input()
            .input(tensor(
                &[2, 1, 2, 2, 2],
                &[1.7f32, 1.14, 0.31, 0.3, 0.79, -0.54, -0.04, 0.91, 1.96, -0.16, -0.05, 0.2, 1.34, -0.03, 1.47, -0.97],
            ))
            .output(tensor(&[1, 1, 4], &[1.7477258f32, -0.12940551, 2.3436363, -0.44226122]))
            .output(tensor(
                &[2, 1, 2, 3, 2],
                &[
                    1.7f32,
                    1.14,
                    0.31,
                    0.3,
                    -1.348,
                    -0.30560017,
                    0.79,
                    -0.54,
                    -0.04,
                    0.91,
                    -0.20000009,
                    -1.0398002,
                    1.96,
                    -0.16,
                    -0.05,
                    0.2,
                    -1.0758001,
                    -1.9228001,
                    1.34,
                    -0.03,
                    1.47,
                    -0.97,
                    4.6870003,
                    -0.38900006,
                ],
            ))
            .within(1e-3, 1e-5),
    ]
}
