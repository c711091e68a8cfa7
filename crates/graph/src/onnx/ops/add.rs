use crate::onnx::{Case, OnnxNode, Operator, Outputs};
use crate::ops::Binary;
use crate::{Builder, OpError};
use halimede_tensor::Tensor;
use smallvec::smallvec;

/// Sum of two tensors that broadcast (ONNX Add, opset 14; opset 6 and below gave an axis).
pub static OPERATOR: Operator = Operator::new("Add").lower(lower).cases(cases);

fn lower(node: &OnnxNode, b: &mut Builder) -> Result<Option<Outputs>, OpError> {
    Ok(Some(smallvec![b.binary(Binary::Add, node.input(0)?, node.input(1)?)?]))
}

fn cases() -> Vec<Case> {
    let matrix = Tensor::from_slice(&[2, 2], &[1.0f32, 2.0, 3.0, 4.0]).expect("4 elements");
    let row = Tensor::from_slice(&[2], &[10.0f32, 20.0]).expect("2 elements");
    let sum = Tensor::from_slice(&[2, 2], &[11.0f32, 22.0, 13.0, 24.0]).expect("4 elements");
    vec![Case::new("a row broadcasts", &OPERATOR, 14).input(matrix).input(row).output(sum)]
}
