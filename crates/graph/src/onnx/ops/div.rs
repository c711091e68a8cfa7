use super::common::one;
use crate::onnx::case::tensor;
use crate::onnx::{Case, OnnxNode, Operator, Outputs};
use crate::ops::Binary;
use crate::{Builder, OpError};

/// Quotient of two tensors that broadcast; integers truncate toward zero (ONNX Div, opset 14).
pub static OPERATOR: Operator = Operator::new("Div").lower(lower).cases(cases);

fn lower(node: &OnnxNode, b: &mut Builder) -> Result<Option<Outputs>, OpError> {
    one(b.binary(Binary::Div, node.input(0)?, node.input(1)?)?)
}

fn cases() -> Vec<Case> {
    let (a, b) = (tensor(&[3], &[7i32, -7, 9]), tensor(&[1], &[2i32]));
    vec![Case::new("integers truncate", &OPERATOR, 14).input(a).input(b).output(tensor(&[3], &[3i32, -3, 4]))]
}
