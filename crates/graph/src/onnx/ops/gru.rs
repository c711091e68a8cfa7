use super::common::{evaluate_by_lowering, lower_recurrent, same_dtype};
use crate::onnx::{OnnxNode, Operator, Outputs};
use crate::ops::RnnKind;
use crate::{Builder, OpError};

/// Gated recurrent unit (ONNX GRU, opset 22; `layout` came with 14).
pub static OPERATOR: Operator = Operator::new("GRU").lower(lower).evaluate(evaluate_by_lowering).infer(same_dtype);

fn lower(node: &OnnxNode, b: &mut Builder) -> Result<Option<Outputs>, OpError> {
    let linear_before_reset = node.attributes.flag_or("linear_before_reset", false)?;
    lower_recurrent(node, b, RnnKind::Gru { linear_before_reset }, &["Sigmoid", "Tanh"])
}
