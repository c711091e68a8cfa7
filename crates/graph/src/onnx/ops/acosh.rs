use super::common::one;
use crate::onnx::case::tensor;
use crate::onnx::{Case, OnnxNode, Operator, Outputs};
use crate::ops::Unary;
use crate::{Builder, OpError};

/// Inverse hyperbolic cosine (ONNX Acosh, opset 22).
pub static OPERATOR: Operator = Operator::new("Acosh").lower(lower).cases(cases);

fn lower(node: &OnnxNode, b: &mut Builder) -> Result<Option<Outputs>, OpError> {
    one(b.unary(Unary::Acosh, node.input(0)?)?)
}

fn cases() -> Vec<Case> {
    let (x, y) = (tensor(&[3], &[1.0f32, 2.0, 10.0]), tensor(&[3], &[0.0f32, 1.316958, 2.993223]));
    vec![Case::new("values", &OPERATOR, 22).input(x).output(y)]
}
