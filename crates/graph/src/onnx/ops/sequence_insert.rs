use super::common::{first_dtype, given, sequence, sequence_fact, sequence_position};
use crate::OpError;
use crate::onnx::case::tensor;
use crate::onnx::{Case, Operator};
use crate::ops::Call;
use halimede_tensor::{Tensor, Value};
use smallvec::smallvec;

/// A sequence with one value more, at the end or before a position (ONNX SequenceInsert, opset 11).
pub static OPERATOR: Operator = Operator::new("SequenceInsert")
    .evaluate(evaluate)
    .infer(|_, inputs| Ok(smallvec![sequence_fact(first_dtype(inputs))]))
    .cases(cases);

fn evaluate(_: &Call, inputs: &[Option<Value>]) -> Result<Vec<Value>, OpError> {
    let mut values = sequence(given(inputs, 0)?)?.to_vec();
    let at = match inputs.get(2) {
        Some(Some(position)) => sequence_position(position, values.len(), values.len() + 1)?,
        _ => values.len(),
    };
    values.insert(at, given(inputs, 1)?.clone());
    Ok(vec![Value::Sequence(values)])
}

fn cases() -> Vec<Case> {
    let value = |v: f32| Value::from(tensor(&[1], &[v]));
    let before = Value::Sequence(vec![value(1.0), value(2.0)]);
    vec![
        Case::new("at the end", &OPERATOR, 11).input(before.clone()).input(value(3.0)).output(Value::Sequence(vec![
            value(1.0),
            value(2.0),
            value(3.0),
        ])),
        Case::new("before the last", &OPERATOR, 11)
            .input(before)
            .input(value(3.0))
            .input(Tensor::scalar(-1i64))
            .output(Value::Sequence(vec![value(1.0), value(3.0), value(2.0)])),
    ]
}
