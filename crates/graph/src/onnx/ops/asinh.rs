use super::common::one;
use crate::onnx::case::tensor;
use crate::onnx::{Case, OnnxNode, Operator, Outputs};
use crate::ops::Unary;
use crate::{Builder, OpError};

/// Inverse hyperbolic sine (ONNX Asinh, opset 22).
pub static OPERATOR: Operator = Operator::new("Asinh").lower(lower).cases(cases);

fn lower(node: &OnnxNode, b: &mut Builder) -> Result<Option<Outputs>, OpError> {
    one(b.unary(Unary::Asinh, node.input(0)?)?)
}

fn cases() -> Vec<Case> {
    let (x, y) = (tensor(&[3], &[-2.0f32, 0.0, 0.5]), tensor(&[3], &[-1.4436355f32, 0.0, 0.4812118]));
    vec![Case::new("values", &OPERATOR, 22).input(x).output(y)]
}
