use super::common::one;
use crate::onnx::case::tensor;
use crate::onnx::{Case, OnnxNode, Operator, Outputs};
use crate::ops::Unary;
use crate::{Builder, OpError};

/// Natural logarithm (ONNX Log, opset 13).
pub static OPERATOR: Operator = Operator::new("Log").lower(lower).cases(cases);

fn lower(node: &OnnxNode, b: &mut Builder) -> Result<Option<Outputs>, OpError> {
    one(b.unary(Unary::Log, node.input(0)?)?)
}

fn cases() -> Vec<Case> {
    let (x, y) = (tensor(&[3], &[1.0f32, 2.0, 10.0]), tensor(&[3], &[0.0f32, 0.6931472, 2.3025851]));
    vec![Case::new("values", &OPERATOR, 13).input(x).output(y)]
}
