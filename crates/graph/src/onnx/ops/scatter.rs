use super::common::{evaluate_by_lowering, same_dtype};
use super::scatter_elements;
use crate::onnx::Operator;

/// The first name of ScatterElements (ONNX Scatter, opset 9 and 10, then deprecated).
pub static OPERATOR: Operator =
    Operator::new("Scatter").lower(scatter_elements::lower).evaluate(evaluate_by_lowering).infer(same_dtype);
