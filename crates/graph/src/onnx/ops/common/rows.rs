use super::{axis_or, one};
use crate::onnx::{OnnxNode, Outputs};
use crate::{Builder, OpError, ValueId};

/// Lowers an operator of the softmax family. From opset 13 on it works along one axis; before, it took
/// the tensor as a matrix of `axis` and all axes after it by the ones before.
pub fn lower_rows(
    node: &OnnxNode,
    b: &mut Builder,
    along: impl FnOnce(&mut Builder, ValueId, usize, usize) -> Result<ValueId, OpError>,
) -> Result<Option<Outputs>, OpError> {
    let x = node.input(0)?;
    let Some(rank) = b.rank(x) else { return Ok(None) };
    if node.opset >= 13 {
        let axis = axis_or(node, -1, rank)?;
        return one(along(b, x, axis, rank)?);
    }
    let axis = axis_or(node, 1.min(rank as i64 - 1), rank)?;
    if axis + 1 == rank {
        return one(along(b, x, axis, rank)?);
    }
    // The axes before stay as they are (0 copies a dimension), which keeps their symbols.
    let mut matrix = vec![0i64; axis];
    matrix.push(-1);
    let rows = b.reshape(x, &matrix)?;
    let result = along(b, rows, axis, axis + 1)?;
    let shape = b.shape_of(x)?;
    one(b.reshape_to(result, shape)?)
}
