use super::common::{fold, one};
use crate::onnx::case::tensor;
use crate::onnx::{Case, OnnxNode, Operator, Outputs};
use crate::ops::Binary;
use crate::{Builder, OpError};

/// Mean of any number of tensors that broadcast (ONNX Mean, opset 13).
pub static OPERATOR: Operator = Operator::new("Mean").lower(lower).cases(cases);

fn lower(node: &OnnxNode, b: &mut Builder) -> Result<Option<Outputs>, OpError> {
    let (sum, inputs) = fold(node, Binary::Add)?;
    one(b.map(&(sum / inputs.len() as f64), &inputs)?)
}

fn cases() -> Vec<Case> {
    let inputs = [[1f32, 2.0], [2.0, 1.0], [3.0, -6.0]];
    let case = Case::new("three inputs", &OPERATOR, 13).output(tensor(&[2], &[2f32, -1.0]));
    vec![inputs.iter().fold(case, |case, x| case.input(tensor(&[2], x)))]
}
