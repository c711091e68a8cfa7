use super::{Windows, sizes, spatial_rank};
use crate::onnx::{OnnxNode, Outputs};
use crate::ops::{Op, Pool, PoolKind};
use crate::{Builder, OpError};

/// Lowers a pooling node with windows; `outputs` is 2 where the indices are wanted too.
pub fn lower_pool(
    node: &OnnxNode,
    b: &mut Builder,
    kind: PoolKind,
    outputs: usize,
) -> Result<Option<Outputs>, OpError> {
    let x = node.input(0)?;
    let Some(spatial) = spatial_rank(b, x)? else { return Ok(None) };
    node.attributes.required("kernel_shape", node.attributes.ints("kernel_shape")?)?;
    let kernel = sizes(node, "kernel_shape", spatial)?;
    let Windows { strides, dilations, padding } = Windows::read(node, spatial)?;
    let ceil_mode = node.attributes.flag_or("ceil_mode", false)?;
    let op = Pool { kind, kernel, strides, dilations, padding, ceil_mode, outputs, channels_last: false };
    Ok(Some(b.add_all(Op::Pool(op), &[Some(x)])?))
}
