use super::common::one;
use crate::onnx::case::{bools, tensor};
use crate::onnx::{Case, OnnxNode, Operator, Outputs};
use crate::ops::Unary;
use crate::{Builder, OpError};

/// Whether an element is not a number (ONNX IsNaN, opset 20).
pub static OPERATOR: Operator = Operator::new("IsNaN").lower(lower).cases(cases);

fn lower(node: &OnnxNode, b: &mut Builder) -> Result<Option<Outputs>, OpError> {
    one(b.unary(Unary::IsNan, node.input(0)?)?)
}

fn cases() -> Vec<Case> {
    let x = tensor(&[3], &[f32::NAN, f32::INFINITY, 1.0]);
    vec![Case::new("NaN alone", &OPERATOR, 20).input(x).output(bools(&[3], &[true, false, false]))]
}
