use super::common::{evaluate_by_lowering, one, resolve_axis, same_dtype};
use crate::onnx::case::tensor;
use crate::onnx::{Attribute, Case, OnnxNode, Operator, Outputs};
use crate::ops::{Concat, Op};
use crate::{Builder, OpError, ValueId};

/// Joins tensors along one axis (ONNX Concat, opset 13).
pub static OPERATOR: Operator =
    Operator::new("Concat").lower(lower).evaluate(evaluate_by_lowering).infer(same_dtype).cases(cases);

fn lower(node: &OnnxNode, b: &mut Builder) -> Result<Option<Outputs>, OpError> {
    let inputs: Vec<ValueId> = (0..node.inputs.len()).map(|index| node.input(index)).collect::<Result<_, _>>()?;
    if inputs.is_empty() {
        return Err(OpError::invalid("there is nothing to join"));
    }
    let axis = node.attributes.required("axis", node.attributes.int("axis")?)?;
    let rank = inputs.iter().find_map(|&input| b.rank(input));
    let axis = match (usize::try_from(axis), rank) {
        (_, Some(rank)) => resolve_axis(axis, rank)?,
        (Ok(axis), None) => axis,
        (Err(_), None) => return Ok(None),
    };
    one(b.add(Op::Concat(Concat { axis }), &inputs)?)
}

fn cases() -> Vec<Case> {
    let (a, b) = (tensor(&[2, 1], &[1u8, 2]), tensor(&[2, 2], &[3u8, 4, 5, 6]));
    vec![
        Case::new("from the end", &OPERATOR, 13)
            .attribute("axis", Attribute::Int(-1))
            .input(a)
            .input(b)
            .output(tensor(&[2, 3], &[1u8, 3, 4, 2, 5, 6])),
    ]
}
