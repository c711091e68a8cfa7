use super::common::one;
use crate::onnx::case::tensor;
use crate::onnx::{Case, OnnxNode, Operator, Outputs};
use crate::ops::Unary;
use crate::{Builder, OpError};

/// Sine (ONNX Sin, opset 22).
pub static OPERATOR: Operator = Operator::new("Sin").lower(lower).cases(cases);

fn lower(node: &OnnxNode, b: &mut Builder) -> Result<Option<Outputs>, OpError> {
    one(b.unary(Unary::Sin, node.input(0)?)?)
}

fn cases() -> Vec<Case> {
    let (x, y) = (tensor(&[3], &[-1.0f32, 0.0, 2.0]), tensor(&[3], &[-0.84147096f32, 0.0, 0.9092974]));
    vec![Case::new("values", &OPERATOR, 22).input(x).output(y)]
}
