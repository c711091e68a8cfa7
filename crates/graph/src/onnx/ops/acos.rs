use super::common::one;
use crate::onnx::case::tensor;
use crate::onnx::{Case, OnnxNode, Operator, Outputs};
use crate::ops::Unary;
use crate::{Builder, OpError};

/// Arc cosine (ONNX Acos, opset 22).
pub static OPERATOR: Operator = Operator::new("Acos").lower(lower).cases(cases);

fn lower(node: &OnnxNode, b: &mut Builder) -> Result<Option<Outputs>, OpError> {
    one(b.unary(Unary::Acos, node.input(0)?)?)
}

fn cases() -> Vec<Case> {
    let (x, y) = (tensor(&[3], &[-1.0f32, 0.0, 0.5]), tensor(&[3], &[3.1415927f32, 1.5707964, 1.0471976]));
    vec![Case::new("values", &OPERATOR, 22).input(x).output(y)]
}
