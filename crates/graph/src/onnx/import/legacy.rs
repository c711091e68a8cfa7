//! What opset 6 and below wrote otherwise.

use crate::onnx::Attributes;
use crate::{Builder, Graph, OpError, ValueId};

/// Operators of two operands that broadcast as NumPy does from opset 7 on.
const OPERANDS: [&str; 11] = ["Add", "And", "Div", "Equal", "Greater", "Less", "Mul", "Or", "Pow", "Sub", "Xor"];

/// Below opset 7 an attribute said along which axis the second operand's first dimension lies, and a
/// slope per channel of PRelu lay along axis 1. The operand gets the axes behind it as dimensions of 1,
/// and then broadcasts by the rule of today.
pub(super) fn align_operand(
    graph: &mut Graph,
    operator: &str,
    opset: i64,
    attributes: &Attributes,
    inputs: &mut [Option<ValueId>],
) -> Result<(), OpError> {
    if opset >= 7 {
        return Ok(());
    }
    let axis = match operator {
        "PRelu" => Some(1),
        _ if OPERANDS.contains(&operator) && attributes.flag_or("broadcast", false)? => attributes.int("axis")?,
        _ => None,
    };
    let (Some(axis), &mut [Some(a), Some(b)]) = (axis, &mut *inputs) else { return Ok(()) };
    let mut builder = Builder::new(graph);
    builder.at(operator, "broadcast by axis");
    let (Some(a_rank), Some(b_rank)) = (builder.rank(a), builder.rank(b)) else {
        return Err(OpError::unsupported("an axis to broadcast along and operands of unknown rank"));
    };
    // One slope for all needs no axis.
    if operator == "PRelu" && (b_rank != 1 || a_rank < 2) {
        return Ok(());
    }
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
