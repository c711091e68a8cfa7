use super::resolve_axis;
use crate::onnx::OnnxNode;
use crate::{Builder, OpError, ValueId};

/// The axis of the scales of a QuantizeLinear or DequantizeLinear node and the number of its elements
/// that share one (0 where all of a tensor or of an index do); `None` where a rank is not known.
pub fn quantization_axis(
    node: &OnnxNode,
    b: &Builder,
    x: ValueId,
    scale: ValueId,
) -> Result<Option<(usize, usize)>, OpError> {
    let (Some(rank), Some(scale_rank)) = (b.rank(x), b.rank(scale)) else { return Ok(None) };
    let block = node.attributes.int_or("block_size", 0)?;
    let Ok(block) = usize::try_from(block) else {
        return Err(OpError::invalid(format!("block_size is {block}; it must not be negative")));
    };
    // With one scale the axis means nothing, and its default may lie outside of a vector.
    let single = scale_rank == 0 || b.fact(scale).known_shape().is_some_and(|shape| shape[..] == [1]);
    if block == 0 && (single || rank == 1) {
        return Ok(Some((0, 0)));
    }
    let axis = resolve_axis(node.attributes.int_or("axis", 1)?, rank)?;
    Ok(Some((axis, block)))
}
