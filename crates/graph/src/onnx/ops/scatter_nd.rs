use super::common::{one, scatter_reduction};
use crate::onnx::case::tensor;
use crate::onnx::{Case, OnnxNode, Operator, Outputs};
use crate::ops::{Op, ScatterNd};
use crate::{Builder, OpError};

/// Writes slices by tuples of indices (ONNX ScatterND, opset 18; `reduction` came with 16).
pub static OPERATOR: Operator = Operator::new("ScatterND").lower(lower).cases(cases);

fn lower(node: &OnnxNode, b: &mut Builder) -> Result<Option<Outputs>, OpError> {
    let op = ScatterNd { reduction: scatter_reduction(node)? };
    one(b.add(Op::ScatterNd(op), &[node.input(0)?, node.input(1)?, node.input(2)?])?)
}

fn cases() -> Vec<Case> {
    vec![
        Case::new("two rows", &OPERATOR, 18)
            .input(tensor(&[3, 2], &[1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0]))
            .input(tensor(&[2, 1], &[2i64, 0]))
            .input(tensor(&[2, 2], &[9.0f32, 8.0, 7.0, 6.0]))
            .output(tensor(&[3, 2], &[7.0f32, 6.0, 3.0, 4.0, 9.0, 8.0])),
    ]
}
