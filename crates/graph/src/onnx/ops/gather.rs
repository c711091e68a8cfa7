use super::common::{evaluate_by_lowering, one, position, same_dtype};
use crate::onnx::case::tensor;
use crate::onnx::{Attribute, Case, OnnxNode, Operator, Outputs};
use crate::ops::{Gather, Op};
use crate::{Builder, OpError};

/// Whole slices by index along one axis (ONNX Gather, opset 13).
pub static OPERATOR: Operator =
    Operator::new("Gather").lower(lower).evaluate(evaluate_by_lowering).infer(same_dtype).cases(cases);

fn lower(node: &OnnxNode, b: &mut Builder) -> Result<Option<Outputs>, OpError> {
    let (data, indices) = (node.input(0)?, node.input(1)?);
    let Some(axis) = position(node.attributes.int_or("axis", 0)?, b.rank(data))? else { return Ok(None) };
    one(b.add(Op::Gather(Gather { axis }), &[data, indices])?)
}

fn cases() -> Vec<Case> {
    vec![
        Case::new("columns, one from the end", &OPERATOR, 13)
            .attribute("axis", Attribute::Int(1))
            .input(tensor(&[2, 3], &[1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0]))
            .input(tensor(&[2], &[-1i64, 0]))
            .output(tensor(&[2, 2], &[3.0f32, 1.0, 6.0, 4.0])),
    ]
}
