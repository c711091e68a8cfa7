use super::common::one;
use crate::onnx::case::tensor;
use crate::onnx::{Case, OnnxNode, Operator, Outputs};
use crate::ops::Binary;
use crate::{Builder, OpError};

/// Product of two tensors that broadcast (ONNX Mul, opset 14).
pub static OPERATOR: Operator = Operator::new("Mul").lower(lower).cases(cases);

fn lower(node: &OnnxNode, b: &mut Builder) -> Result<Option<Outputs>, OpError> {
    one(b.binary(Binary::Mul, node.input(0)?, node.input(1)?)?)
}

fn cases() -> Vec<Case> {
    let (a, b) = (tensor(&[2, 2], &[1.0f32, 2.0, 3.0, 4.0]), tensor(&[2], &[2.0f32, 3.0]));
    vec![
        Case::new("a row broadcasts", &OPERATOR, 14)
            .input(a)
            .input(b)
            .output(tensor(&[2, 2], &[2.0f32, 6.0, 6.0, 12.0])),
    ]
}
