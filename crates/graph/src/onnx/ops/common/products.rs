use super::{Windows, sizes, spatial_rank};
use crate::onnx::{Attributes, OnnxNode};
use crate::ops::{Binary, Contract, Conv, Expr, Labels, Op};
use crate::{Builder, OpError, ValueId};
use halimede_tensor::DType;
use smallvec::smallvec;

/// The product of matrices with broadcast batch axes, as NumPy's `matmul`; `None` where a rank is not
/// known.
pub fn matmul(b: &mut Builder, x: ValueId, y: ValueId) -> Result<Option<ValueId>, OpError> {
    let (Some(x_rank), Some(y_rank)) = (b.rank(x), b.rank(y)) else { return Ok(None) };
    if x_rank == 0 || y_rank == 0 {
        return Err(OpError::invalid("an operand is a scalar; a matrix product needs at least one axis on each side"));
    }
    let batch = x_rank.max(y_rank).saturating_sub(2);
    // Batch axes are labelled from the right, so that operands of different ranks broadcast.
    let leading = |rank: usize| (batch - rank.saturating_sub(2)..batch).map(|label| label as u8);
    let (m, n, k) = (batch as u8, batch as u8 + 1, batch as u8 + 2);
    let lhs: Labels = if x_rank == 1 { smallvec![k] } else { leading(x_rank).chain([m, k]).collect() };
    let rhs: Labels = if y_rank == 1 { smallvec![k] } else { leading(y_rank).chain([k, n]).collect() };
    let out = (0..batch as u8).chain((x_rank > 1).then_some(m)).chain((y_rank > 1).then_some(n)).collect();
    b.add(Op::Contract(Contract::new(lhs, rhs, out)), &[x, y]).map(Some)
}

/// The convolution that a node describes, of values that may have been prepared; `None` where a rank
/// is not known.
pub fn conv(
    node: &OnnxNode,
    b: &mut Builder,
    x: ValueId,
    weights: ValueId,
    bias: Option<ValueId>,
) -> Result<Option<ValueId>, OpError> {
    // Either operand tells the rank.
    let known = if b.rank(x).is_some() { x } else { weights };
    let Some(spatial) = spatial_rank(b, known)? else { return Ok(None) };
    if node.attributes.ints("kernel_shape")?.is_some() {
        check_kernel_shape(node, b, weights, spatial)?;
    }
    let Windows { strides, dilations, padding } = Windows::read(node, spatial)?;
    let groups = groups(&node.attributes, "group")?;
    let op = Conv {
        strides,
        dilations,
        padding,
        groups,
        transposed: None,
        channels_last: false,
        multiply: None,
        epilogue: None,
    };
    b.add_with_optional(Op::Conv(op), &[Some(x), Some(weights), bias]).map(Some)
}

/// An attribute that counts groups, which must be positive; 1 where the node has none.
pub fn groups(attributes: &Attributes, name: &str) -> Result<usize, OpError> {
    let groups = attributes.int_or(name, 1)?;
    usize::try_from(groups)
        .ok()
        .filter(|&groups| groups > 0)
        .ok_or_else(|| OpError::invalid(format!("{name} is {groups}; it must be positive")))
}

/// The attribute `kernel_shape` only repeats what the weights say; an error where it says otherwise.
pub fn check_kernel_shape(node: &OnnxNode, b: &Builder, weights: ValueId, spatial: usize) -> Result<(), OpError> {
    let stated = sizes(node, "kernel_shape", spatial)?;
    let Some(shape) = b.fact(weights).known_shape() else { return Ok(()) };
    match shape.get(2..) {
        Some(actual) if *actual != *stated => {
            Err(OpError::invalid(format!("kernel_shape is {stated:?} but the weights are {shape:?}")))
        }
        _ => Ok(()),
    }
}

/// `x - zero_point` in i32, for sums of products of 8-bit integers: exact, whatever the zero point.
pub fn centred(b: &mut Builder, x: ValueId, zero_point: Option<ValueId>) -> Result<ValueId, OpError> {
    let Some(zero_point) = zero_point else { return b.cast(x, DType::I32) };
    let difference = Expr::input(0).cast(DType::I32).with(Binary::Sub, Expr::input(1).cast(DType::I32));
    b.map(&difference, &[x, zero_point])
}

/// A vector with one element per channel, shaped to broadcast with `[N, C, ...]` of `rank` dimensions.
pub fn per_channel(b: &mut Builder, vector: ValueId, rank: usize) -> Result<ValueId, OpError> {
    match b.rank(vector) {
        Some(0) => Ok(vector),
        _ => {
            let mut shape = vec![1i64; rank - 1];
            shape[0] = -1;
            b.reshape(vector, &shape)
        }
    }
}
