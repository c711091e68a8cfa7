use super::common::{fold, one};
use crate::onnx::case::tensor;
use crate::onnx::{Case, OnnxNode, Operator, Outputs};
use crate::ops::Binary;
use crate::{Builder, OpError};

/// Sum of any number of tensors that broadcast (ONNX Sum, opset 13).
pub static OPERATOR: Operator = Operator::new("Sum").lower(lower).cases(cases);

fn lower(node: &OnnxNode, b: &mut Builder) -> Result<Option<Outputs>, OpError> {
    let (formula, inputs) = fold(node, Binary::Add)?;
    one(b.map(&formula, &inputs)?)
}

fn cases() -> Vec<Case> {
    let inputs = [[1f32, 2.0], [2.0, 1.0], [3.0, -5.0]];
    let case = Case::new("three inputs", &OPERATOR, 13).output(tensor(&[2], &[6.0f32, -2.0]));
    vec![inputs.iter().fold(case, |case, x| case.input(tensor(&[2], x)))]
}
