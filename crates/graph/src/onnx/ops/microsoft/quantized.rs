//! What ONNX Runtime's quantized operators share.

use crate::onnx::OnnxNode;
use crate::onnx::ops::common::resolve_axis;
use crate::ops::{Dequantize, Op, Quantize};
use crate::{Builder, OpError, ValueId};

/// The numbers that inputs `first`, `first + 1` (scale) and `first + 2` (zero point) stand for.
pub fn dequantized(node: &OnnxNode, b: &mut Builder, first: usize) -> Result<ValueId, OpError> {
    dequantize(b, node.input(first)?, node.input(first + 1)?, node.optional(first + 2))
}

/// The numbers that quantized values stand for, one scale for all.
pub fn dequantize(
    b: &mut Builder,
    x: ValueId,
    scale: ValueId,
    zero_point: Option<ValueId>,
) -> Result<ValueId, OpError> {
    b.add_with_optional(Op::Dequantize(Dequantize { to: None, axis: 0, block: 0 }), &[Some(x), Some(scale), zero_point])
}

/// Quantizes a result by the scale of input `first` and the zero point of input `first + 1`, to the
/// datatype of the value `like`.
pub fn quantized(
    node: &OnnxNode,
    b: &mut Builder,
    x: ValueId,
    first: usize,
    like: ValueId,
) -> Result<ValueId, OpError> {
    let op = Quantize { to: b.dtype(like)?, axis: 0, block: 0, saturate: true, precision: None };
    b.add_with_optional(Op::Quantize(op), &[Some(x), Some(node.input(first)?), node.optional(first + 1)])
}

/// The order of axes that puts the channels behind the batch, where a node has them last, and the one
/// that puts them back.
pub fn channel_orders(rank: usize) -> (Vec<usize>, Vec<usize>) {
    let first = std::iter::once(0).chain([rank - 1]).chain(1..rank - 1).collect();
    let last = std::iter::once(0).chain(2..rank).chain([1]).collect();
    (first, last)
}

/// The attribute `axes` of a node as positions; `None` where it has none.
pub fn axes(node: &OnnxNode, rank: usize) -> Result<Option<Vec<usize>>, OpError> {
    let Some(axes) = node.attributes.ints("axes")? else { return Ok(None) };
    axes.iter().map(|&axis| resolve_axis(axis, rank)).collect::<Result<_, _>>().map(Some)
}
