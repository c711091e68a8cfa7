use super::common::one;
use crate::onnx::case::tensor;
use crate::onnx::{Case, OnnxNode, Operator, Outputs};
use crate::ops::Unary;
use crate::{Builder, OpError};

/// Arc tangent (ONNX Atan, opset 22).
pub static OPERATOR: Operator = Operator::new("Atan").lower(lower).cases(cases);

fn lower(node: &OnnxNode, b: &mut Builder) -> Result<Option<Outputs>, OpError> {
    one(b.unary(Unary::Atan, node.input(0)?)?)
}

fn cases() -> Vec<Case> {
    let (x, y) = (tensor(&[3], &[-2.0f32, 0.0, 0.5]), tensor(&[3], &[-1.1071488f32, 0.0, 0.4636476]));
    vec![Case::new("values", &OPERATOR, 22).input(x).output(y)]
}
