//! What ONNX Runtime's attention operators share.

use crate::onnx::OnnxNode;
use crate::onnx::ops::common::{AttentionMask, Size, join_heads, reshape};
use crate::ops::{Attention, Binary, Concat, Expr, Gather, Map, Op, Slice};
use crate::{Builder, OpError, ValueId};
use halimede_tensor::{DType, Tensor};

/// Queries, keys and values of `[batch, heads, places, size]`, keys and values with what came before.
pub struct Heads {
    /// Queries.
    pub q: ValueId,
    /// Keys.
    pub k: ValueId,
    /// Values.
    pub v: ValueId,
    /// Whether keys and values came before, so that the queries stand at the end.
    pub past: bool,
}

impl Heads {
    /// The attention, heads joined again: `[batch, places, heads · size]`.
    pub fn attend(&self, node: &OnnxNode, b: &mut Builder, mask: AttentionMask) -> Result<ValueId, OpError> {
        // A scale of 0 stands for none.
        let scale = node.attributes.float("scale")?.filter(|&scale| scale != 0.0);
        let causal = node.attributes.flag_or("unidirectional", false)?;
        let op = Attention { scale, causal, causal_from_end: self.past, ..Attention::default() };
        let mask = mask.value(b)?;
        let y = b.add_with_optional(Op::Attention(op), &[Some(self.q), Some(self.k), Some(self.v), mask])?;
        join_heads(b, y)
    }
}

/// The number of heads that a node states.
pub fn head_count(node: &OnnxNode) -> Result<i64, OpError> {
    let heads = node.attributes.required("num_heads", node.attributes.int("num_heads")?)?;
    if heads > 0 { Ok(heads) } else { Err(OpError::invalid(format!("num_heads is {heads}; it must be positive"))) }
}

/// What hides keys from queries: a length per sequence, or a 1 per key that takes part. Hidden keys get
/// a number that the node states added to their scores. An error for the forms of left padding.
pub fn padding_mask(node: &OnnxNode, b: &mut Builder, mask: ValueId, heads: &Heads) -> Result<AttentionMask, OpError> {
    let keys = Size::of(b, heads.k, 2)?;
    let mut allowed = AttentionMask::default();
    match b.rank(mask) {
        Some(1) => {
            let batch = |value: ValueId| b.fact(value).shape.as_ref().and_then(|shape| shape[0].known());
            if let (Some(count), Some(batch)) = (batch(mask), batch(heads.q))
                && count != batch
            {
                return Err(OpError::unsupported(format!(
                    "a mask of {count} positions for {batch} sequences (left padding)"
                )));
            }
            let lengths = b.cast(mask, DType::I64)?;
            allowed.lengths(b, lengths, keys)?;
        }
        Some(rank @ (2 | 3)) => {
            let dtype = b.dtype(mask)?;
            let taken: Map = Expr::input(0).greater(0.0).map(dtype);
            let taken = b.add(Op::Map(taken), &[mask])?;
            let batch = Size::of(b, taken, 0)?;
            let rows = if rank == 3 { Size::of(b, taken, 1)? } else { Size::Known(1) };
            let columns = Size::of(b, taken, rank - 1)?;
            let taken = reshape(b, taken, &[batch, Size::Known(1), rows, columns])?;
            allowed.given(b, taken, keys)?;
        }
        other => return Err(OpError::unsupported(format!("a mask of {other:?} dimensions"))),
    }
    let hidden = node.attributes.float_or("mask_filter_value", -10_000.0)?;
    let dtype = b.dtype(heads.q)?;
    let mut numbers = AttentionMask::default();
    if let Some(allowed) = allowed.value(b)? {
        let added: Map = Expr::input(0).select(0.0, hidden).map(dtype);
        let added = b.add(Op::Map(added), &[allowed])?;
        numbers.given(b, added, keys)?;
    }
    Ok(numbers)
}

/// The part `start..start + size` of the last axis.
pub fn columns(b: &mut Builder, x: ValueId, start: i64, size: i64) -> Result<ValueId, OpError> {
    let (start, end, axis) = (b.ints(&[start]), b.ints(&[start + size]), b.ints(&[-1]));
    b.add(Op::Slice(Slice), &[x, start, end, axis])
}

/// One slice of the axis `axis`, which goes.
pub fn slice_at(b: &mut Builder, x: ValueId, axis: usize, index: i64) -> Result<ValueId, OpError> {
    let index = b.constant(Tensor::scalar(index));
    b.add(Op::Gather(Gather { axis }), &[x, index])
}

/// What came before with what is new, along the places.
pub fn append(b: &mut Builder, past: Option<ValueId>, new: ValueId) -> Result<ValueId, OpError> {
    match past {
        Some(past) => b.add(Op::Concat(Concat { axis: 2 }), &[past, new]),
        None => Ok(new),
    }
}

/// Queries, keys and values from one projection of `[batch, places, q + k + v]`, with a cache of
/// `[2, batch, heads, places, size]`; the second value is that cache with what is new.
pub fn from_projection(
    b: &mut Builder,
    projected: ValueId,
    sizes: [i64; 3],
    count: i64,
    past: Option<ValueId>,
) -> Result<(Heads, ValueId), OpError> {
    use crate::onnx::ops::common::split_heads;
    let mut start = 0;
    let mut parts = [projected; 3];
    for (part, size) in parts.iter_mut().zip(sizes) {
        let piece = columns(b, projected, start, size)?;
        *part = split_heads(b, piece, count)?;
        start += size;
    }
    let [q, new_k, new_v] = parts;
    let (mut k, mut v) = (new_k, new_v);
    if let Some(past) = past {
        let (past_k, past_v) = (slice_at(b, past, 0, 0)?, slice_at(b, past, 0, 1)?);
        (k, v) = (append(b, Some(past_k), new_k)?, append(b, Some(past_v), new_v)?);
    }
    let mut stacked = [k, v];
    for part in &mut stacked {
        let mut shape = Size::all(b, *part, 4)?;
        shape.insert(0, Size::Known(1));
        *part = reshape(b, *part, &shape)?;
    }
    let present = b.add(Op::Concat(Concat { axis: 0 }), &stacked)?;
    Ok((Heads { q, k, v, past: past.is_some() }, present))
}

/// A vector added along the last axis, where there is one.
pub fn biased(b: &mut Builder, x: ValueId, bias: Option<ValueId>) -> Result<ValueId, OpError> {
    bias.map_or(Ok(x), |bias| b.binary(Binary::Add, x, bias))
}
