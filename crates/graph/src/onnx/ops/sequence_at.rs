use super::common::{first_dtype, given, sequence, sequence_position};
use crate::onnx::case::tensor;
use crate::onnx::{Case, Operator};
use crate::ops::Call;
use crate::{Fact, OpError};
use halimede_tensor::{Tensor, Value};
use smallvec::smallvec;

/// The value at a position of a sequence (ONNX SequenceAt, opset 11).
pub static OPERATOR: Operator = Operator::new("SequenceAt")
    .evaluate(evaluate)
    .infer(|_, inputs| Ok(smallvec![Fact::of_dtype(first_dtype(&inputs[..inputs.len().min(1)]))]))
    .cases(cases);

fn evaluate(_: &Call, inputs: &[Option<Value>]) -> Result<Vec<Value>, OpError> {
    let values = sequence(given(inputs, 0)?)?;
    Ok(vec![values[sequence_position(given(inputs, 1)?, values.len(), values.len())?].clone()])
}

fn cases() -> Vec<Case> {
    let (a, b) = (tensor(&[1], &[1.0f32]), tensor(&[2], &[2.0f32, 3.0]));
    let both = Value::Sequence(vec![a.into(), b.clone().into()]);
    vec![Case::new("from the end", &OPERATOR, 11).input(both).input(Tensor::scalar(-1i64)).output(b)]
}
