use super::cast::lower_to;
use super::common::evaluate_by_lowering;
use crate::onnx::case::tensor;
use crate::onnx::{Case, OnnxNode, Operator, Outputs};
use crate::{Builder, OpError};

/// The datatype of another tensor (ONNX CastLike, opset 25).
pub static OPERATOR: Operator = Operator::new("CastLike").lower(lower).evaluate(evaluate_by_lowering).cases(cases);

fn lower(node: &OnnxNode, b: &mut Builder) -> Result<Option<Outputs>, OpError> {
    match b.fact(node.input(1)?).dtype {
        Some(to) => lower_to(node, b, to),
        None => Ok(None),
    }
}

fn cases() -> Vec<Case> {
    let case =
        Case::new("to an integer", &OPERATOR, 21).input(tensor(&[2], &[1.9f32, -1.9])).input(tensor(&[], &[0i64]));
    vec![case.output(tensor(&[2], &[1i64, -1]))]
}
