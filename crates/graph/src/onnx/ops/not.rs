use super::common::one;
use crate::onnx::case::bools;
use crate::onnx::{Case, OnnxNode, Operator, Outputs};
use crate::ops::Unary;
use crate::{Builder, OpError};

/// Negation of truth values (ONNX Not, opset 1).
pub static OPERATOR: Operator = Operator::new("Not").lower(lower).cases(cases);

fn lower(node: &OnnxNode, b: &mut Builder) -> Result<Option<Outputs>, OpError> {
    one(b.unary(Unary::Not, node.input(0)?)?)
}

fn cases() -> Vec<Case> {
    vec![Case::new("both", &OPERATOR, 1).input(bools(&[2], &[true, false])).output(bools(&[2], &[false, true]))]
}
