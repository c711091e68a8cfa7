use super::common::one;
use crate::onnx::case::tensor;
use crate::onnx::{Case, OnnxNode, Operator, Outputs};
use crate::ops::Unary;
use crate::{Builder, OpError};

/// Smallest integer not below (ONNX Ceil, opset 13).
pub static OPERATOR: Operator = Operator::new("Ceil").lower(lower).cases(cases);

fn lower(node: &OnnxNode, b: &mut Builder) -> Result<Option<Outputs>, OpError> {
    one(b.unary(Unary::Ceil, node.input(0)?)?)
}

fn cases() -> Vec<Case> {
    let (x, y) = (tensor(&[3], &[-1.5f32, 0.2, 3.0]), tensor(&[3], &[-1.0f32, 1.0, 3.0]));
    vec![Case::new("values", &OPERATOR, 13).input(x).output(y)]
}
