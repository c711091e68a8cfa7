use crate::onnx::OnnxNode;
use crate::ops::{Gather, Op, Range, ShapeOf};
use crate::{Builder, OpError, ValueId};
use halimede_tensor::Tensor;

/// An axis that may be counted from the end, as a position.
pub fn resolve_axis(axis: i64, rank: usize) -> Result<usize, OpError> {
    let resolved = if axis < 0 { axis.saturating_add(rank as i64) } else { axis };
    usize::try_from(resolved)
        .ok()
        .filter(|&a| a < rank)
        .ok_or_else(|| OpError::invalid(format!("axis {axis} lies outside a tensor of {rank} dimensions")))
}

/// An axis as a position, where it can be told: one counted from the end needs the rank.
pub fn position(axis: i64, rank: Option<usize>) -> Result<Option<usize>, OpError> {
    match rank {
        Some(rank) => resolve_axis(axis, rank).map(Some),
        None => Ok(usize::try_from(axis).ok()),
    }
}

/// The attribute `axis` of a node, or its default, as a position in a tensor of `rank` dimensions.
pub fn axis_or(node: &OnnxNode, default: i64, rank: usize) -> Result<usize, OpError> {
    resolve_axis(node.attributes.int_or("axis", default)?, rank)
}

/// `0, 1, 2, …` (i64) along `axis` of `x`, shaped to broadcast with it.
pub fn iota(b: &mut Builder, x: ValueId, axis: usize, rank: usize) -> Result<ValueId, OpError> {
    let end = i64::try_from(axis + 1).ok();
    let dims = b.add(Op::ShapeOf(ShapeOf { start: axis as i64, end }), &[x])?;
    let first = b.constant(Tensor::scalar(0i64));
    let size = b.add(Op::Gather(Gather { axis: 0 }), &[dims, first])?;
    let (start, step) = (b.constant(Tensor::scalar(0i64)), b.constant(Tensor::scalar(1i64)));
    let positions = b.add(Op::Range(Range), &[start, size, step])?;
    let mut shape = vec![1i64; rank - axis];
    shape[0] = -1;
    b.reshape(positions, &shape)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_count_from_either_end() {
        assert_eq!(resolve_axis(-1, 3).unwrap(), 2);
        assert_eq!(resolve_axis(0, 3).unwrap(), 0);
        assert!(resolve_axis(3, 3).is_err() && resolve_axis(-4, 3).is_err() && resolve_axis(i64::MIN, 3).is_err());
    }
}
