use super::common::one;
use crate::onnx::case::tensor;
use crate::onnx::{Case, OnnxNode, Operator, Outputs};
use crate::ops::Unary;
use crate::{Builder, OpError};

/// Hyperbolic tangent (ONNX Tanh, opset 13).
pub static OPERATOR: Operator = Operator::new("Tanh").lower(lower).cases(cases);

fn lower(node: &OnnxNode, b: &mut Builder) -> Result<Option<Outputs>, OpError> {
    one(b.unary(Unary::Tanh, node.input(0)?)?)
}

fn cases() -> Vec<Case> {
    let (x, y) = (tensor(&[3], &[-1.0f32, 0.0, 2.0]), tensor(&[3], &[-0.7615942f32, 0.0, 0.9640276]));
    vec![Case::new("values", &OPERATOR, 13).input(x).output(y)]
}
