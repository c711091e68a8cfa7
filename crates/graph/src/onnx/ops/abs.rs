use crate::onnx::{Case, OnnxNode, Operator, Outputs};
use crate::ops::Unary;
use crate::{Builder, OpError};
use halimede_tensor::Tensor;
use smallvec::smallvec;

/// Absolute value (ONNX Abs, opset 13).
pub static OPERATOR: Operator = Operator::new("Abs").lower(lower).cases(cases);

fn lower(node: &OnnxNode, b: &mut Builder) -> Result<Option<Outputs>, OpError> {
    Ok(Some(smallvec![b.unary(Unary::Abs, node.input(0)?)?]))
}

fn cases() -> Vec<Case> {
    let tensor = |v: &[f32]| Tensor::from_slice(&[v.len()], v).expect("one dimension of that length");
    vec![Case::new("signs", &OPERATOR, 13).input(tensor(&[-1.5, 0.0, 2.0])).output(tensor(&[1.5, 0.0, 2.0]))]
}
