use crate::onnx::case::{strings, tensor};
use crate::onnx::ops::common::{evaluate_by_lowering, one};
use crate::onnx::{Case, OnnxNode, Operator, Outputs};
use crate::ops::{Gather, Op};
use crate::{Builder, OpError};

/// Features by index (ai.onnx.ml ArrayFeatureExtractor, opset 1).
pub static OPERATOR: Operator =
    Operator::in_domain("ai.onnx.ml", "ArrayFeatureExtractor").lower(lower).evaluate(evaluate_by_lowering).cases(cases);

fn lower(node: &OnnxNode, b: &mut Builder) -> Result<Option<Outputs>, OpError> {
    let mut x = node.input(0)?;
    let rank = match b.rank(x) {
        None => return Ok(None),
        // A vector is one row.
        Some(0 | 1) => {
            x = b.reshape(x, &[1, -1])?;
            2
        }
        Some(rank) => rank,
    };
    let indices = b.reshape(node.input(1)?, &[-1])?;
    one(b.add(Op::Gather(Gather { axis: rank - 1 }), &[x, indices])?)
}

fn cases() -> Vec<Case> {
    vec![
        Case::new("columns", &OPERATOR, 3)
            .input(tensor(&[2, 3], &[1.0f32, -2.0, 0.5, 0.0, 3.0, -1.0]))
            .input(tensor(&[2], &[2i64, 0]))
            .output(tensor(&[2, 2], &[0.5f32, 1.0, -1.0, 0.0])),
        Case::new("a vector of texts", &OPERATOR, 3)
            .input(strings(&[3], &["a", "b", "c"]))
            .input(tensor(&[1], &[1i64]))
            .output(strings(&[1, 1], &["b"])),
    ]
}
