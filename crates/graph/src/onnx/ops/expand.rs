use super::common::one;
use crate::onnx::case::tensor;
use crate::onnx::{Case, OnnxNode, Operator, Outputs};
use crate::ops::{Expand, Op};
use crate::{Builder, OpError};

/// Broadcasts to a shape, both ways (ONNX Expand, opset 13).
pub static OPERATOR: Operator = Operator::new("Expand").lower(lower).cases(cases);

fn lower(node: &OnnxNode, b: &mut Builder) -> Result<Option<Outputs>, OpError> {
    one(b.add(Op::Expand(Expand), &[node.input(0)?, node.input(1)?])?)
}

fn cases() -> Vec<Case> {
    vec![
        Case::new("the shape may be the smaller one", &OPERATOR, 13)
            .input(tensor(&[2, 1], &[1.0f32, 2.0]))
            .input(tensor(&[3], &[2i64, 1, 2]))
            .output(tensor(&[2, 2, 2], &[1.0f32, 1.0, 2.0, 2.0, 1.0, 1.0, 2.0, 2.0])),
    ]
}
