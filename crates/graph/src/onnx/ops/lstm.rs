use super::common::{evaluate_by_lowering, lower_recurrent, same_dtype};
use crate::onnx::{OnnxNode, Operator, Outputs};
use crate::ops::RnnKind;
use crate::{Builder, OpError};

/// Long short-term memory (ONNX LSTM, opset 22; `layout` came with 14).
pub static OPERATOR: Operator = Operator::new("LSTM").lower(lower).evaluate(evaluate_by_lowering).infer(same_dtype);

fn lower(node: &OnnxNode, b: &mut Builder) -> Result<Option<Outputs>, OpError> {
    let input_forget = node.attributes.flag_or("input_forget", false)?;
    lower_recurrent(node, b, RnnKind::Lstm { input_forget }, &["Sigmoid", "Tanh", "Tanh"])
}
