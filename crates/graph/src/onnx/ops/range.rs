use super::common::one;
use crate::onnx::case::tensor;
use crate::onnx::{Case, OnnxNode, Operator, Outputs};
use crate::ops::{Op, Range};
use crate::{Builder, OpError};

/// `start, start + delta, …` below `limit` (ONNX Range, opset 11).
pub static OPERATOR: Operator = Operator::new("Range").lower(lower).cases(cases);

fn lower(node: &OnnxNode, b: &mut Builder) -> Result<Option<Outputs>, OpError> {
    one(b.add(Op::Range(Range), &[node.input(0)?, node.input(1)?, node.input(2)?])?)
}

fn cases() -> Vec<Case> {
    let scalar = |value: i32| tensor(&[], &[value]);
    vec![
        Case::new("downwards", &OPERATOR, 11)
            .input(scalar(10))
            .input(scalar(3))
            .input(scalar(-3))
            .output(tensor(&[3], &[10i32, 7, 4])),
    ]
}
