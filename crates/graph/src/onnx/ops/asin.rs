use super::common::one;
use crate::onnx::case::tensor;
use crate::onnx::{Case, OnnxNode, Operator, Outputs};
use crate::ops::Unary;
use crate::{Builder, OpError};

/// Arc sine (ONNX Asin, opset 22).
pub static OPERATOR: Operator = Operator::new("Asin").lower(lower).cases(cases);

fn lower(node: &OnnxNode, b: &mut Builder) -> Result<Option<Outputs>, OpError> {
    one(b.unary(Unary::Asin, node.input(0)?)?)
}

fn cases() -> Vec<Case> {
    let (x, y) = (tensor(&[3], &[-1.0f32, 0.0, 0.5]), tensor(&[3], &[-1.5707964f32, 0.0, 0.5235988]));
    vec![Case::new("values", &OPERATOR, 22).input(x).output(y)]
}
