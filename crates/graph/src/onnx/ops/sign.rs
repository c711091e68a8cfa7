use super::common::one;
use crate::onnx::case::tensor;
use crate::onnx::{Case, OnnxNode, Operator, Outputs};
use crate::ops::Unary;
use crate::{Builder, OpError};

/// -1, 0 or 1 by sign (ONNX Sign, opset 13).
pub static OPERATOR: Operator = Operator::new("Sign").lower(lower).cases(cases);

fn lower(node: &OnnxNode, b: &mut Builder) -> Result<Option<Outputs>, OpError> {
    one(b.unary(Unary::Sign, node.input(0)?)?)
}

fn cases() -> Vec<Case> {
    let (x, y) = (tensor(&[3], &[-1.5f32, 0.0, 2.0]), tensor(&[3], &[-1.0f32, 0.0, 1.0]));
    vec![Case::new("values", &OPERATOR, 13).input(x).output(y)]
}
