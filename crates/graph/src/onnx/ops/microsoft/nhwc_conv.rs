use super::quantized::channel_orders;
use crate::onnx::ops::common::{conv, evaluate_by_lowering, one};
use crate::onnx::{OnnxNode, Operator, Outputs};
use crate::{Builder, OpError};

/// ONNX's Conv with the channels of the data last; its weights are `[M, C/groups, ...]` (ONNX Runtime
/// NhwcConv).
pub static OPERATOR: Operator =
    Operator::in_domain("com.microsoft", "NhwcConv").lower(lower).evaluate(evaluate_by_lowering);

fn lower(node: &OnnxNode, b: &mut Builder) -> Result<Option<Outputs>, OpError> {
    let Some(rank) = b.rank(node.input(0)?).filter(|&rank| rank > 2) else { return Ok(None) };
    let (first, last) = channel_orders(rank);
    let x = b.transpose(node.input(0)?, &first)?;
    let Some(y) = conv(node, b, x, node.input(1)?, node.optional(2))? else { return Ok(None) };
    one(b.transpose(y, &last)?)
}
