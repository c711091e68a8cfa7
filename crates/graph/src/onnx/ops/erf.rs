use super::common::one;
use crate::onnx::case::tensor;
use crate::onnx::{Case, OnnxNode, Operator, Outputs};
use crate::ops::Unary;
use crate::{Builder, OpError};

/// Gauss error function (ONNX Erf, opset 13).
pub static OPERATOR: Operator = Operator::new("Erf").lower(lower).cases(cases);

fn lower(node: &OnnxNode, b: &mut Builder) -> Result<Option<Outputs>, OpError> {
    one(b.unary(Unary::Erf, node.input(0)?)?)
}

fn cases() -> Vec<Case> {
    let (x, y) = (tensor(&[3], &[-1.0f32, 0.0, 0.3]), tensor(&[3], &[-0.8427008f32, 0.0, 0.32862675]));
    vec![Case::new("values", &OPERATOR, 13).input(x).output(y)]
}
