use super::common::{first_dtype, given, sequence, sequence_fact, sequence_position};
use crate::OpError;
use crate::onnx::case::tensor;
use crate::onnx::{Case, Operator};
use crate::ops::Call;
use halimede_tensor::{Tensor, Value};
use smallvec::smallvec;

/// A sequence without its last value, or without that at a position (ONNX SequenceErase, opset 11).
pub static OPERATOR: Operator = Operator::new("SequenceErase")
    .evaluate(evaluate)
    .infer(|_, inputs| Ok(smallvec![sequence_fact(first_dtype(&inputs[..inputs.len().min(1)]))]))
    .cases(cases);

fn evaluate(_: &Call, inputs: &[Option<Value>]) -> Result<Vec<Value>, OpError> {
    let mut values = sequence(given(inputs, 0)?)?.to_vec();
    let at = match inputs.get(1) {
        Some(Some(position)) => sequence_position(position, values.len(), values.len())?,
        _ => values.len().checked_sub(1).ok_or_else(|| OpError::invalid("the sequence is empty"))?,
    };
    values.remove(at);
    Ok(vec![Value::Sequence(values)])
}

fn cases() -> Vec<Case> {
    let value = |v: i64| Value::from(tensor(&[1], &[v]));
    let before = Value::Sequence(vec![value(1), value(2)]);
    vec![
        Case::new("the last", &OPERATOR, 11).input(before.clone()).output(Value::Sequence(vec![value(1)])),
        Case::new("the first", &OPERATOR, 11)
            .input(before)
            .input(Tensor::scalar(0i64))
            .output(Value::Sequence(vec![value(2)])),
    ]
}
