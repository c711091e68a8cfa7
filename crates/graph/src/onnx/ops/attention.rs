use super::common::{AttentionMask, Places, Size, evaluate_by_lowering, join_heads, reshape, same_dtype, split_heads};
use crate::onnx::case::{bools, tensor};
use crate::onnx::{Attribute, Case, OnnxNode, Operator, Outputs};
use crate::ops::{Attention, Binary, Concat, Contract, Expr, Labels, Map, Op, ReduceKind, Softmax, Unary};
use crate::{Builder, OpError, ValueId};
use halimede_tensor::DType;
use smallvec::smallvec;

/// Scaled dot-product attention over `[B, H, S, D]` or `[B, S, H · D]` with grouped heads, cached keys
/// and values, masks and softcap (ONNX Attention, opset 25; `nonpad_kv_seqlen` came with 24, the
/// windows with 25).
pub static OPERATOR: Operator =
    Operator::new("Attention").lower(lower).evaluate(evaluate_by_lowering).infer(same_dtype).cases(cases);

fn lower(node: &OnnxNode, b: &mut Builder) -> Result<Option<Outputs>, OpError> {
    let mut inputs = [node.input(0)?, node.input(1)?, node.input(2)?];
    let rank = b.rank(inputs[0]);
    match rank {
        None => return Ok(None),
        Some(4) => {}
        Some(3) => {
            let heads = |name| node.attributes.required(name, node.attributes.int(name)?);
            let (query, key) = (heads("q_num_heads")?, heads("kv_num_heads")?);
            for (input, heads) in inputs.iter_mut().zip([query, key, key]) {
                *input = split_heads(b, *input, heads)?;
            }
        }
        Some(rank) => return Err(OpError::invalid(format!("the query has {rank} dimensions instead of 3 or 4"))),
    }
    let [q, new_k, new_v] = inputs;
    let (past_k, past_v) = (node.optional(4), node.optional(5));
    let k = append(b, past_k, new_k)?;
    let v = append(b, past_v, new_v)?;
    let heads = Heads { q, k, v: cast_like(b, v, q)? };

    let softcap = node.attributes.float_or("softcap", 0.0)?;
    let wants_scores = node.wants(3);
    // As first published, the cap came after the mask; opset 25 put it before.
    let cap_last = node.opset < 25 && softcap > 0.0 && node.optional(3).is_some();
    let by_parts = wants_scores || cap_last;
    let mut causal = node.attributes.flag_or("is_causal", false)?;
    let mask = mask(node, b, &heads, new_k, by_parts, &mut causal)?;
    let scale = node.attributes.float("scale")?;
    let (y, scores) = if by_parts {
        let mode = node.attributes.int_or("qk_matmul_output_mode", 0)?;
        let cap = (softcap > 0.0).then_some(softcap);
        let Some(parts) = heads.by_parts(b, mask, scale, cap, node.opset < 25, mode)? else { return Ok(None) };
        parts
    } else {
        let op = Attention { scale, causal, causal_from_end: past_k.is_some(), softcap, ..Attention::default() };
        let mask = mask.value(b)?;
        let y = b.add_with_optional(Op::Attention(op), &[Some(q), Some(heads.k), Some(heads.v), mask])?;
        (y, y)
    };
    let y = if rank == Some(3) { join_heads(b, y)? } else { y };
    let mut outputs: Outputs = smallvec![y, k, v, scores];
    outputs.truncate(node.outputs.len().max(1));
    Ok(Some(outputs))
}

/// What came before with what is new, along the places.
fn append(b: &mut Builder, past: Option<ValueId>, new: ValueId) -> Result<ValueId, OpError> {
    match past {
        Some(past) => b.add(Op::Concat(Concat { axis: 2 }), &[past, new]),
        None => Ok(new),
    }
}

fn cast_like(b: &mut Builder, x: ValueId, like: ValueId) -> Result<ValueId, OpError> {
    let dtype = b.dtype(like)?;
    b.cast(x, dtype)
}

/// Everything that hides keys. `causal` stays set where the core operator can do that part itself.
fn mask(
    node: &OnnxNode,
    b: &mut Builder,
    heads: &Heads,
    new_k: ValueId,
    by_parts: bool,
    causal: &mut bool,
) -> Result<AttentionMask, OpError> {
    let (queries, keys) = (Size::of(b, heads.q, 2)?, Size::of(b, heads.k, 2)?);
    let (past, lengths) = (node.optional(4), node.optional(6));
    let mut mask = AttentionMask::default();
    if let Some(given) = node.optional(3) {
        mask.given(b, given, keys)?;
    }
    if let Some(lengths) = lengths {
        mask.lengths(b, lengths, keys)?;
    }
    let limit = |name: &str| node.attributes.int_or(name, -1);
    let (left, right) = (limit("left_window_size")?, limit("right_window_size")?);
    // The core operator counts from the end, which is right where as many keys as queries are new.
    let simple = lengths.is_none() && !by_parts && (past.is_none() || same_size(b, heads.q, new_k));
    if (*causal && !simple) || left >= 0 || right >= 0 {
        let offset = match (past, lengths) {
            (Some(past), _) => Some(Size::of(b, past, 2)?.vector(b)),
            (None, Some(lengths)) => {
                let lengths = b.cast(lengths, DType::I64)?;
                let lengths = b.reshape(lengths, &[-1, 1, 1, 1])?;
                let queries = queries.vector(b);
                Some(b.binary(Binary::Sub, lengths, queries)?)
            }
            (None, None) => None,
        };
        let places = Places::new(b, queries, keys, offset)?;
        mask.window(b, places, left, right)?;
        if *causal && !simple {
            mask.causal(b, places)?;
            *causal = false;
        }
    }
    Ok(mask)
}

fn same_size(b: &Builder, x: ValueId, y: ValueId) -> bool {
    let places = |value| b.fact(value).shape.as_ref().and_then(|shape| shape.get(2).cloned());
    matches!((places(x), places(y)), (Some(x), Some(y)) if x == y)
}

/// Queries, keys and values of `[batch, heads, places, size]`.
struct Heads {
    q: ValueId,
    k: ValueId,
    v: ValueId,
}

impl Heads {
    /// The attention step by step, and of its steps the one that `mode` asks for.
    fn by_parts(
        &self,
        b: &mut Builder,
        mask: AttentionMask,
        scale: Option<f32>,
        softcap: Option<f32>,
        cap_last: bool,
        mode: i64,
    ) -> Result<Option<(ValueId, ValueId)>, OpError> {
        let dtype = b.dtype(self.q)?;
        let scale = match (scale, b.fact(self.q).shape.as_ref().and_then(|shape| shape[3].known())) {
            (Some(scale), _) => f64::from(scale),
            (None, Some(size)) => 1.0 / (size as f64).sqrt(),
            (None, None) => return Ok(None),
        };
        let groups = Size::of(b, self.k, 1)?;
        let (batch, query_heads) = (Size::of(b, self.q, 0)?, Size::of(b, self.q, 1)?);
        let (queries, keys) = (Size::of(b, self.q, 2)?, Size::of(b, self.k, 2)?);
        let per_group = query_heads.over(b, groups)?;
        let size = Size::of(b, self.q, 3)?;
        let q = reshape(b, self.q, &[batch, groups, per_group, queries, size])?;
        let raw = contract(b, [0, 1, 2, 3, 5], [0, 1, 4, 5], [0, 1, 2, 3, 4], q, self.k)?;
        let raw = reshape(b, raw, &[batch, query_heads, queries, keys])?;
        let scale = b.scalar(scale, dtype)?;
        let raw = b.binary(Binary::Mul, raw, scale)?;

        let bias = mask.numbers(b, dtype)?;
        let (early, scores) = if cap_last {
            let biased = add(b, raw, bias)?;
            (biased, cap(b, biased, softcap)?)
        } else {
            let capped = cap(b, raw, softcap)?;
            (capped, add(b, capped, bias)?)
        };
        let mut weights = b.add(Op::Softmax(Softmax { axis: 3, log: false }), &[scores])?;
        if let Some(bias) = bias {
            // A query that sees no key gets zeros.
            let last = b.rank(bias).and_then(|rank| rank.checked_sub(1));
            let Some(last) = last else { return Ok(None) };
            let best = b.reduce(ReduceKind::Max, bias, [last], true)?;
            let hidden = b.scalar(f64::NEG_INFINITY, dtype)?;
            let blind = b.binary(Binary::Equal, best, hidden)?;
            let seen: Map = Expr::input(0).select(0.0, Expr::input(1)).map(dtype);
            weights = b.add(Op::Map(seen), &[blind, weights])?;
        }
        let grouped = reshape(b, weights, &[batch, groups, per_group, queries, keys])?;
        let y = contract(b, [0, 1, 2, 3, 4], [0, 1, 4, 5], [0, 1, 2, 3, 5], grouped, self.v)?;
        let size = Size::of(b, self.v, 3)?;
        let y = reshape(b, y, &[batch, query_heads, queries, size])?;
        let unknown = || OpError::invalid(format!("qk_matmul_output_mode is {mode}; ONNX knows 0 to 3"));
        let steps = [raw, early, scores, weights];
        let asked = usize::try_from(mode).ok().and_then(|mode| steps.get(mode)).ok_or_else(unknown)?;
        Ok(Some((y, *asked)))
    }
}

/// Scores with the mask added.
fn add(b: &mut Builder, scores: ValueId, bias: Option<ValueId>) -> Result<ValueId, OpError> {
    bias.map_or(Ok(scores), |bias| b.binary(Binary::Add, scores, bias))
}

/// `cap · tanh(score / cap)`.
fn cap(b: &mut Builder, scores: ValueId, cap: Option<f32>) -> Result<ValueId, OpError> {
    let Some(cap) = cap else { return Ok(scores) };
    b.map(&((Expr::input(0) / cap).apply(Unary::Tanh) * cap), &[scores])
}

fn contract<const L: usize, const R: usize, const O: usize>(
    b: &mut Builder,
    lhs: [u8; L],
    rhs: [u8; R],
    out: [u8; O],
    x: ValueId,
    y: ValueId,
) -> Result<ValueId, OpError> {
    let labels = |list: &[u8]| Labels::from_slice(list);
    let op = Contract::new(labels(&lhs), labels(&rhs), labels(&out));
    b.add(Op::Contract(op), &[x, y])
}

fn cases() -> Vec<Case> {
    let (q, k) = (tensor(&[1, 1, 1, 1], &[0.0f32]), tensor(&[1, 1, 2, 1], &[1.0f32, 2.0]));
    let v = tensor(&[1, 1, 2, 1], &[10.0f32, 20.0]);
    vec![
        Case::new("equal scores average", &OPERATOR, 23)
            .input(q.clone())
            .input(k.clone())
            .input(v.clone())
            .output(tensor(&[1, 1, 1, 1], &[15.0f32])),
        Case::new("a hidden key, scores asked for", &OPERATOR, 23)
            .attribute("qk_matmul_output_mode", Attribute::Int(3))
            .input(q)
            .input(k.clone())
            .input(v.clone())
            .input(bools(&[1, 2], &[false, true]))
            .output(tensor(&[1, 1, 1, 1], &[20.0f32]))
            .output(k)
            .output(v)
            .output(tensor(&[1, 1, 1, 2], &[0.0f32, 1.0])),
    ]
}
