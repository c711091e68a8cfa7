use super::common::{axis_or, evaluate_by_lowering, one};
use crate::onnx::case::tensor;
use crate::onnx::{Attribute, Case, OnnxNode, Operator, Outputs};
use crate::ops::{ArgReduce, Op};
use crate::{Builder, OpError};

/// Index of the largest element along an axis (ONNX ArgMax, opset 13).
pub static OPERATOR: Operator = Operator::new("ArgMax").lower(lower).evaluate(evaluate_by_lowering).cases(cases);

fn lower(node: &OnnxNode, b: &mut Builder) -> Result<Option<Outputs>, OpError> {
    let x = node.input(0)?;
    let Some(rank) = b.rank(x) else { return Ok(None) };
    let op = ArgReduce {
        largest: true,
        axis: axis_or(node, 0, rank)?,
        keep_dims: node.attributes.flag_or("keepdims", true)?,
        last: node.attributes.flag_or("select_last_index", false)?,
    };
    one(b.add(Op::ArgReduce(op), &[x])?)
}

fn cases() -> Vec<Case> {
    let x = || tensor(&[2, 3], &[1f32, 5.0, 5.0, 0.0, 2.0, 0.0]);
    let case = |name| Case::new(name, &OPERATOR, 13).attribute("axis", Attribute::Int(-1)).input(x());
    vec![
        case("the first of equals").output(tensor(&[2, 1], &[1i64, 1])),
        case("the last of equals")
            .attribute("select_last_index", Attribute::Int(1))
            .attribute("keepdims", Attribute::Int(0))
            .output(tensor(&[2], &[2i64, 1])),
    ]
}
