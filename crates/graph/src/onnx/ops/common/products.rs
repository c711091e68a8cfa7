use super::{Windows, sizes, spatial_rank};
use crate::onnx::{Attributes, OnnxNode};
use crate::ops::{Binary, Contract, Conv, Expr, Factors, Labels, Op, integer_weights};
use crate::{Builder, OpError, ValueId};
use halimede_tensor::DType;
use smallvec::smallvec;

/// The product of matrices with broadcast batch axes, as NumPy's `matmul`; `None` where a rank is not
/// known.
pub fn matmul(b: &mut Builder, x: ValueId, y: ValueId) -> Result<Option<ValueId>, OpError> {
    let Some(op) = matmul_op(b, x, y)? else { return Ok(None) };
    b.add(Op::Contract(op), &[x, y]).map(Some)
}

/// What [`matmul`] adds.
fn matmul_op(b: &Builder, x: ValueId, y: ValueId) -> Result<Option<Contract>, OpError> {
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
    Ok(Some(Contract::new(lhs, rhs, out)))
}

/// [`matmul`] of integers with constant weights, each less its zero point, where these are one for all data and
/// one for all weights or for each of their columns; `None` where it is anything else.
pub fn integer_matmul(
    b: &mut Builder,
    (x, x_zero): (ValueId, Option<ValueId>),
    (y, y_zero): (ValueId, Option<ValueId>),
) -> Result<Option<ValueId>, OpError> {
    if b.rank(x).is_none_or(|rank| rank < 2) || b.rank(y) != Some(2) {
        return Ok(None);
    }
    let Some((op, weights)) = matmul_op(b, x, y)?.zip(integer_operand(b, (x, x_zero), (y, y_zero), 1)) else {
        return Ok(None);
    };
    let op = Contract { multiply: Some(Factors::Integers), ..op };
    b.add_with_optional(Op::Contract(op), &[Some(x), Some(weights), x_zero]).map(Some)
}

/// Constant weights as a product of integers wants them, `axis` being that of their zero points; `None` where
/// data or weights do not fit.
pub fn integer_operand(
    b: &mut Builder,
    (x, x_zero): (ValueId, Option<ValueId>),
    (y, y_zero): (ValueId, Option<ValueId>),
    axis: usize,
) -> Option<ValueId> {
    let graph = b.graph();
    let bytes = matches!(graph.fact(x).dtype, Some(DType::U8 | DType::I8));
    let one =
        x_zero.is_none_or(|zero| graph.fact(zero).count() == Some(1) && graph.fact(zero).dtype == graph.fact(x).dtype);
    let zeros = match y_zero {
        Some(zero) => Some(graph.constant(zero)?),
        None => None,
    };
    let weights = integer_weights(graph.constant(y).filter(|_| bytes && one)?, zeros, axis)?;
    Some(b.constant(weights))
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
    let Some(op) = conv_op(node, b, x, weights)? else { return Ok(None) };
    b.add_with_optional(Op::Conv(op), &[Some(x), Some(weights), bias]).map(Some)
}

/// What [`conv`] adds.
pub fn conv_op(node: &OnnxNode, b: &Builder, x: ValueId, weights: ValueId) -> Result<Option<Conv>, OpError> {
    // Either operand tells the rank.
    let known = if b.rank(x).is_some() { x } else { weights };
    let Some(spatial) = spatial_rank(b, known)? else { return Ok(None) };
    if node.attributes.ints("kernel_shape")?.is_some() {
        check_kernel_shape(node, b, weights, spatial)?;
    }
    let Windows { strides, dilations, padding } = Windows::read(node, spatial)?;
    let groups = groups(&node.attributes, "group")?;
    Ok(Some(Conv {
        strides,
        dilations,
        padding,
        groups,
        transposed: None,
        channels_last: false,
        multiply: None,
        epilogue: None,
    }))
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
