use super::common::one;
use crate::onnx::case::tensor;
use crate::onnx::{Case, OnnxNode, Operator, Outputs};
use crate::ops::Unary;
use crate::{Builder, OpError};

/// Square root (ONNX Sqrt, opset 13).
pub static OPERATOR: Operator = Operator::new("Sqrt").lower(lower).cases(cases);

fn lower(node: &OnnxNode, b: &mut Builder) -> Result<Option<Outputs>, OpError> {
    one(b.unary(Unary::Sqrt, node.input(0)?)?)
}

fn cases() -> Vec<Case> {
    let (x, y) = (tensor(&[3], &[0.0f32, 2.0, 9.0]), tensor(&[3], &[0.0f32, 1.4142135, 3.0]));
    vec![Case::new("values", &OPERATOR, 13).input(x).output(y)]
}
