use super::common::{evaluate_by_lowering, one, position, same_dtype, scatter_reduction};
use crate::onnx::case::tensor;
use crate::onnx::{Attribute, Case, OnnxNode, Operator, Outputs};
use crate::ops::{Op, ScatterElements};
use crate::{Builder, OpError};

/// Writes single elements by index along one axis (ONNX ScatterElements, opset 18; `reduction` came
/// with 16).
pub static OPERATOR: Operator =
    Operator::new("ScatterElements").lower(lower).evaluate(evaluate_by_lowering).infer(same_dtype).cases(cases);

pub(super) fn lower(node: &OnnxNode, b: &mut Builder) -> Result<Option<Outputs>, OpError> {
    let (data, indices, updates) = (node.input(0)?, node.input(1)?, node.input(2)?);
    let rank = b.rank(data).or(b.rank(indices));
    let Some(axis) = position(node.attributes.int_or("axis", 0)?, rank)? else { return Ok(None) };
    let op = ScatterElements { axis, reduction: scatter_reduction(node)? };
    one(b.add(Op::ScatterElements(op), &[data, indices, updates])?)
}

fn cases() -> Vec<Case> {
    let case = |name, reduction: &str, expected: &[f32]| {
        Case::new(name, &OPERATOR, 18)
            .attribute("axis", Attribute::Int(1))
            .attribute("reduction", Attribute::String(reduction.into()))
            .input(tensor(&[1, 4], &[1.0f32, 2.0, 3.0, 4.0]))
            .input(tensor(&[1, 3], &[1i64, -1, -1]))
            .input(tensor(&[1, 3], &[10.0f32, 20.0, 1.0]))
            .output(tensor(&[1, 4], expected))
    };
    vec![case("the last one stays", "none", &[1.0, 10.0, 3.0, 1.0]), case("sum", "add", &[1.0, 12.0, 3.0, 25.0])]
}
