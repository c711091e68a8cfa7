use super::{one, resolve_axis};
use crate::onnx::{OnnxNode, Outputs};
use crate::ops::ReduceKind;
use crate::{Builder, OpError};
use halimede_tensor::DType;

/// Lowers a `Reduce*` node. Its axes are an attribute below opset `axes_input_since` and a second
/// input from there on; without axes all are reduced, or none where `noop_with_empty_axes` says so.
pub fn lower_reduce(
    node: &OnnxNode,
    b: &mut Builder,
    kind: ReduceKind,
    axes_input_since: i64,
) -> Result<Option<Outputs>, OpError> {
    let x = node.input(0)?;
    let Some(rank) = b.rank(x) else { return Ok(None) };
    let given: Option<Vec<i64>> = match node.optional(1) {
        Some(axes) if node.opset >= axes_input_since => match b.fact(axes).ints() {
            Some(axes) => Some(axes),
            None => return Ok(None),
        },
        _ => node.attributes.ints("axes")?.map(<[i64]>::to_vec),
    };
    let given = given.filter(|axes| !axes.is_empty());
    let keep_dims = node.attributes.flag_or("keepdims", true)?;
    let mut axes: Vec<usize> = match given {
        Some(axes) => axes.into_iter().map(|axis| resolve_axis(axis, rank)).collect::<Result<_, _>>()?,
        None if node.attributes.flag_or("noop_with_empty_axes", false)? => Vec::new(),
        None => (0..rank).collect(),
    };
    axes.sort_unstable();
    axes.dedup();
    // The largest and smallest truth value are "any" and "all".
    if b.fact(x).dtype == Some(DType::Bool) {
        let numbers = b.cast(x, DType::U8)?;
        let reduced = b.reduce(kind, numbers, axes, keep_dims)?;
        return one(b.cast(reduced, DType::Bool)?);
    }
    one(b.reduce(kind, x, axes, keep_dims)?)
}
