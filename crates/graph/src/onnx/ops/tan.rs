use super::common::one;
use crate::onnx::case::tensor;
use crate::onnx::{Case, OnnxNode, Operator, Outputs};
use crate::ops::Unary;
use crate::{Builder, OpError};

/// Tangent (ONNX Tan, opset 22).
pub static OPERATOR: Operator = Operator::new("Tan").lower(lower).cases(cases);

fn lower(node: &OnnxNode, b: &mut Builder) -> Result<Option<Outputs>, OpError> {
    one(b.unary(Unary::Tan, node.input(0)?)?)
}

fn cases() -> Vec<Case> {
    let (x, y) = (tensor(&[3], &[-1.0f32, 0.0, 1.2]), tensor(&[3], &[-1.5574077f32, 0.0, 2.5721517]));
    vec![Case::new("values", &OPERATOR, 22).input(x).output(y)]
}
