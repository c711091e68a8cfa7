//! What opset 6 and below wrote otherwise.

use crate::onnx::Attributes;
use crate::{Builder, Graph, OpError, ValueId};

/// Operators of two operands that broadcast as NumPy does from opset 7 on.
const OPERANDS: [&str; 11] = ["Add", "And", "Div", "Equal", "Greater", "Less", "Mul", "Or", "Pow", "Sub", "Xor"];

/// Below opset 7 an attribute said along which axis the second operand's first dimension lies: it gets
/// the axes behind it as dimensions of 1, and then broadcasts by the rule of today.
pub(super) fn align_operand(
    graph: &mut Graph,
    operator: &str,
    opset: i64,
    attributes: &Attributes,
    inputs: &mut [Option<ValueId>],
) -> Result<(), OpError> {
    if opset >= 7 || !OPERANDS.contains(&operator) || !attributes.flag_or("broadcast", false)? {
        return Ok(());
    }
    let (Some(axis), &mut [Some(a), Some(b)]) = (attributes.int("axis")?, &mut *inputs) else { return Ok(()) };
    let mut builder = Builder::new(graph);
    builder.at(operator, "broadcast by axis");
    let (Some(a_rank), Some(b_rank)) = (builder.rank(a), builder.rank(b)) else {
        return Err(OpError::unsupported("an axis to broadcast along and operands of unknown rank"));
    };
    let axis = if axis < 0 { axis.saturating_add(a_rank as i64) } else { axis };
    let behind = usize::try_from(axis).ok().and_then(|axis| a_rank.checked_sub(axis)?.checked_sub(b_rank));
    let behind = behind.ok_or_else(|| OpError::invalid(format!("axis {axis} for ranks {a_rank} and {b_rank}")))?;
    if behind > 0 {
        // A 0 copies the dimension.
        let shape: Vec<i64> = (0..b_rank).map(|_| 0).chain((0..behind).map(|_| 1)).collect();
        inputs[1] = Some(builder.reshape(b, &shape)?);
    }
    Ok(())
}
