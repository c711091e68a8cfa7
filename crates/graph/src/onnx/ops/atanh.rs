use super::common::one;
use crate::onnx::case::tensor;
use crate::onnx::{Case, OnnxNode, Operator, Outputs};
use crate::ops::Unary;
use crate::{Builder, OpError};

/// Inverse hyperbolic tangent (ONNX Atanh, opset 22).
pub static OPERATOR: Operator = Operator::new("Atanh").lower(lower).cases(cases);

fn lower(node: &OnnxNode, b: &mut Builder) -> Result<Option<Outputs>, OpError> {
    one(b.unary(Unary::Atanh, node.input(0)?)?)
}

fn cases() -> Vec<Case> {
    let (x, y) = (tensor(&[3], &[-0.5f32, 0.0, 0.9]), tensor(&[3], &[-0.54930615f32, 0.0, 1.4722195]));
    vec![Case::new("values", &OPERATOR, 22).input(x).output(y)]
}
