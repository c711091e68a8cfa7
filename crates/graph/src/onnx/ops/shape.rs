use super::common::one;
use crate::onnx::case::tensor;
use crate::onnx::{Attribute, Case, OnnxNode, Operator, Outputs};
use crate::ops::{Op, ShapeOf};
use crate::{Builder, OpError};

/// The dimensions of a tensor (ONNX Shape, opset 25; `start` and `end` came with 15).
pub static OPERATOR: Operator = Operator::new("Shape").lower(lower).cases(cases);

fn lower(node: &OnnxNode, b: &mut Builder) -> Result<Option<Outputs>, OpError> {
    let op = ShapeOf { start: node.attributes.int_or("start", 0)?, end: node.attributes.int("end")? };
    one(b.add(Op::ShapeOf(op), &[node.input(0)?])?)
}

fn cases() -> Vec<Case> {
    vec![
        Case::new("the last one", &OPERATOR, 15)
            .attribute("start", Attribute::Int(-1))
            .input(tensor(&[2, 1, 3], &[0u8; 6]))
            .output(tensor(&[1], &[3i64])),
    ]
}
