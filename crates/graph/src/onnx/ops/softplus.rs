use super::common::one;
use crate::onnx::case::tensor;
use crate::onnx::{Case, OnnxNode, Operator, Outputs};
use crate::ops::Unary;
use crate::{Builder, OpError};

/// `ln(1 + eˣ)` (ONNX Softplus, opset 22).
pub static OPERATOR: Operator = Operator::new("Softplus").lower(lower).cases(cases);

fn lower(node: &OnnxNode, b: &mut Builder) -> Result<Option<Outputs>, OpError> {
    one(b.unary(Unary::Softplus, node.input(0)?)?)
}

fn cases() -> Vec<Case> {
    let (x, y) = (tensor(&[3], &[-1.0f32, 0.0, 2.0]), tensor(&[3], &[0.3132617f32, 0.6931472, 2.126928]));
    vec![Case::new("values", &OPERATOR, 22).input(x).output(y)]
}
