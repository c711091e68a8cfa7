use super::common::one;
use crate::onnx::case::tensor;
use crate::onnx::{Case, OnnxNode, Operator, Outputs};
use crate::ops::Unary;
use crate::{Builder, OpError};

/// Reciprocal (ONNX Reciprocal, opset 13).
pub static OPERATOR: Operator = Operator::new("Reciprocal").lower(lower).cases(cases);

fn lower(node: &OnnxNode, b: &mut Builder) -> Result<Option<Outputs>, OpError> {
    one(b.unary(Unary::Reciprocal, node.input(0)?)?)
}

fn cases() -> Vec<Case> {
    let (x, y) = (tensor(&[3], &[-4.0f32, 0.5, 2.0]), tensor(&[3], &[-0.25f32, 2.0, 0.5]));
    vec![Case::new("values", &OPERATOR, 13).input(x).output(y)]
}
