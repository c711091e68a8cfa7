use super::common::one;
use crate::onnx::case::tensor;
use crate::onnx::{Case, OnnxNode, Operator, Outputs};
use crate::ops::Unary;
use crate::{Builder, OpError};

/// Every bit of an integer inverted (ONNX BitwiseNot, opset 18).
pub static OPERATOR: Operator = Operator::new("BitwiseNot").lower(lower).cases(cases);

fn lower(node: &OnnxNode, b: &mut Builder) -> Result<Option<Outputs>, OpError> {
    one(b.unary(Unary::BitNot, node.input(0)?)?)
}

fn cases() -> Vec<Case> {
    let (x, y) = (tensor(&[2], &[0u8, 0b1010]), tensor(&[2], &[255u8, 0b1111_0101]));
    vec![Case::new("unsigned", &OPERATOR, 18).input(x).output(y)]
}
