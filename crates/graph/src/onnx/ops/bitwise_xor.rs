use super::common::one;
use crate::onnx::case::tensor;
use crate::onnx::{Case, OnnxNode, Operator, Outputs};
use crate::ops::Binary;
use crate::{Builder, OpError};

/// Exclusive disjunction bit by bit of integers that broadcast (ONNX BitwiseXor, opset 18).
pub static OPERATOR: Operator = Operator::new("BitwiseXor").lower(lower).cases(cases);

fn lower(node: &OnnxNode, b: &mut Builder) -> Result<Option<Outputs>, OpError> {
    one(b.binary(Binary::BitXor, node.input(0)?, node.input(1)?)?)
}

fn cases() -> Vec<Case> {
    let (a, b) = (tensor(&[3], &[12u8, 10, 255]), tensor(&[1], &[10u8]));
    vec![Case::new("one element broadcasts", &OPERATOR, 18).input(a).input(b).output(tensor(&[3], &[6u8, 0, 245]))]
}
