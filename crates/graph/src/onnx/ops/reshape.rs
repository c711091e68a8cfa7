use super::common::one;
use crate::onnx::case::tensor;
use crate::onnx::{Case, OnnxNode, Operator, Outputs};
use crate::ops::{Op, Reshape};
use crate::{Builder, OpError};

/// The same elements under another shape (ONNX Reshape, opset 14; `allowzero` came with 14).
pub static OPERATOR: Operator = Operator::new("Reshape").lower(lower).cases(cases);

fn lower(node: &OnnxNode, b: &mut Builder) -> Result<Option<Outputs>, OpError> {
    let op = Reshape { allow_zero: node.attributes.flag_or("allowzero", false)? };
    one(b.add(Op::Reshape(op), &[node.input(0)?, node.input(1)?])?)
}

fn cases() -> Vec<Case> {
    let data = tensor(&[2, 3], &[1i32, 2, 3, 4, 5, 6]);
    vec![
        Case::new("0 copies and -1 is worked out", &OPERATOR, 14)
            .input(data.clone())
            .input(tensor(&[3], &[0i64, -1, 1]))
            .output(tensor(&[2, 3, 1], &[1i32, 2, 3, 4, 5, 6])),
        Case::new("to one axis", &OPERATOR, 7)
            .input(data)
            .input(tensor(&[1], &[6i64]))
            .output(tensor(&[6], &[1i32, 2, 3, 4, 5, 6])),
    ]
}
