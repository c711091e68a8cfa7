use super::common::one;
use crate::onnx::case::bools;
use crate::onnx::{Case, OnnxNode, Operator, Outputs};
use crate::ops::Binary;
use crate::{Builder, OpError};

/// Disjunction of truth values that broadcast (ONNX Or, opset 7).
pub static OPERATOR: Operator = Operator::new("Or").lower(lower).cases(cases);

fn lower(node: &OnnxNode, b: &mut Builder) -> Result<Option<Outputs>, OpError> {
    one(b.binary(Binary::Or, node.input(0)?, node.input(1)?)?)
}

fn cases() -> Vec<Case> {
    let (a, b) = (bools(&[4], &[false, false, true, true]), bools(&[4], &[false, true, false, true]));
    vec![Case::new("truth table", &OPERATOR, 7).input(a).input(b).output(bools(&[4], &[false, true, true, true]))]
}
