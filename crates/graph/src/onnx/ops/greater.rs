use super::common::one;
use crate::onnx::case::{bools, tensor};
use crate::onnx::{Case, OnnxNode, Operator, Outputs};
use crate::ops::Binary;
use crate::{Builder, OpError};

/// Whether the first is above the second (ONNX Greater, opset 13).
pub static OPERATOR: Operator = Operator::new("Greater").lower(lower).cases(cases);

fn lower(node: &OnnxNode, b: &mut Builder) -> Result<Option<Outputs>, OpError> {
    one(b.binary(Binary::Greater, node.input(0)?, node.input(1)?)?)
}

fn cases() -> Vec<Case> {
    let (a, b) = (tensor(&[2, 2], &[1.0f32, 2.0, 3.0, 4.0]), tensor(&[2], &[2.0f32, 3.0]));
    vec![
        Case::new("a row broadcasts", &OPERATOR, 13)
            .input(a)
            .input(b)
            .output(bools(&[2, 2], &[false, false, true, true])),
    ]
}
