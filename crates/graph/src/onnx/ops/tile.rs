use super::common::one;
use crate::onnx::case::tensor;
use crate::onnx::{Case, OnnxNode, Operator, Outputs};
use crate::ops::{Op, Tile};
use crate::{Builder, OpError};

/// Repeats along every axis (ONNX Tile, opset 13).
pub static OPERATOR: Operator = Operator::new("Tile").lower(lower).cases(cases);

fn lower(node: &OnnxNode, b: &mut Builder) -> Result<Option<Outputs>, OpError> {
    one(b.add(Op::Tile(Tile), &[node.input(0)?, node.input(1)?])?)
}

fn cases() -> Vec<Case> {
    vec![
        Case::new("twice to the right", &OPERATOR, 13)
            .input(tensor(&[2, 1], &[1.0f32, 2.0]))
            .input(tensor(&[2], &[1i64, 2]))
            .output(tensor(&[2, 2], &[1.0f32, 1.0, 2.0, 2.0])),
    ]
}
