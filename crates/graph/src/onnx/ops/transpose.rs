use super::common::{evaluate_by_lowering, one, same_dtype};
use crate::onnx::case::tensor;
use crate::onnx::{Attribute, Case, OnnxNode, Operator, Outputs};
use crate::{Builder, OpError};

/// Reorders axes; reverses them without `perm` (ONNX Transpose, opset 25).
pub static OPERATOR: Operator =
    Operator::new("Transpose").lower(lower).evaluate(evaluate_by_lowering).infer(same_dtype).cases(cases);

fn lower(node: &OnnxNode, b: &mut Builder) -> Result<Option<Outputs>, OpError> {
    let x = node.input(0)?;
    let perm = match (node.attributes.ints("perm")?, b.rank(x)) {
        (Some(perm), rank) => checked(perm, rank.unwrap_or(perm.len()))?,
        (None, Some(rank)) => (0..rank).rev().collect(),
        (None, None) => return Ok(None),
    };
    one(b.transpose(x, &perm)?)
}

fn checked(perm: &[i64], rank: usize) -> Result<Vec<usize>, OpError> {
    let mut sorted = perm.to_vec();
    sorted.sort_unstable();
    if !sorted.iter().copied().eq(0..rank as i64) {
        return Err(OpError::invalid(format!(
            "perm {perm:?} does not order the axes of a tensor of {rank} dimensions"
        )));
    }
    Ok(perm.iter().map(|&axis| axis as usize).collect())
}

fn cases() -> Vec<Case> {
    let data = tensor(&[1, 2, 2], &[1.0f32, 2.0, 3.0, 4.0]);
    vec![
        Case::new("reversed", &OPERATOR, 13).input(data.clone()).output(tensor(&[2, 2, 1], &[1.0f32, 3.0, 2.0, 4.0])),
        Case::new("permuted", &OPERATOR, 7)
            .attribute("perm", Attribute::Ints(vec![1, 0, 2]))
            .input(data)
            .output(tensor(&[2, 1, 2], &[1.0f32, 2.0, 3.0, 4.0])),
    ]
}
