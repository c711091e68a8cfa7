use super::common::{evaluate_by_lowering, one, position, same_dtype};
use crate::onnx::case::tensor;
use crate::onnx::{Attribute, Case, OnnxNode, Operator, Outputs};
use crate::ops::{GatherElements, Op};
use crate::{Builder, OpError};

/// Single elements by index along one axis (ONNX GatherElements, opset 13).
pub static OPERATOR: Operator =
    Operator::new("GatherElements").lower(lower).evaluate(evaluate_by_lowering).infer(same_dtype).cases(cases);

fn lower(node: &OnnxNode, b: &mut Builder) -> Result<Option<Outputs>, OpError> {
    let (data, indices) = (node.input(0)?, node.input(1)?);
    let rank = b.rank(data).or(b.rank(indices));
    let Some(axis) = position(node.attributes.int_or("axis", 0)?, rank)? else { return Ok(None) };
    one(b.add(Op::GatherElements(GatherElements { axis }), &[data, indices])?)
}

fn cases() -> Vec<Case> {
    vec![
        Case::new("along rows", &OPERATOR, 13)
            .attribute("axis", Attribute::Int(1))
            .input(tensor(&[2, 2], &[1.0f32, 2.0, 3.0, 4.0]))
            .input(tensor(&[2, 2], &[0i64, 0, -1, 0]))
            .output(tensor(&[2, 2], &[1.0f32, 1.0, 4.0, 3.0])),
    ]
}
