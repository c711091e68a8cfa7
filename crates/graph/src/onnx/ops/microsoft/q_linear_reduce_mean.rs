use super::quantized::{axes, dequantized, quantized};
use crate::onnx::ops::common::{evaluate_by_lowering, one};
use crate::onnx::{OnnxNode, Operator, Outputs};
use crate::ops::ReduceKind;
use crate::{Builder, OpError};

/// Mean of a quantized tensor over axes, quantized (ONNX Runtime QLinearReduceMean).
pub static OPERATOR: Operator =
    Operator::in_domain("com.microsoft", "QLinearReduceMean").lower(lower).evaluate(evaluate_by_lowering);

fn lower(node: &OnnxNode, b: &mut Builder) -> Result<Option<Outputs>, OpError> {
    let Some(rank) = b.rank(node.input(0)?) else { return Ok(None) };
    let axes = axes(node, rank)?.unwrap_or_else(|| (0..rank).collect());
    let x = dequantized(node, b, 0)?;
    let mean = b.reduce(ReduceKind::Mean, x, axes, node.attributes.flag_or("keepdims", true)?)?;
    one(quantized(node, b, mean, 3, node.input(0)?)?)
}
