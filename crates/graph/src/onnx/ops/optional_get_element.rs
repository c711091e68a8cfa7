use super::common::{first_dtype, given};
use crate::onnx::case::tensor;
use crate::onnx::{Case, Operator};
use crate::ops::{Call, Facts};
use crate::{Fact, Kind, OpError};
use halimede_tensor::Value;
use smallvec::smallvec;

/// What an optional holds (ONNX OptionalGetElement, opset 18); anything else passes as it is.
pub static OPERATOR: Operator = Operator::new("OptionalGetElement").evaluate(evaluate).infer(infer).cases(cases);

fn evaluate(_: &Call, inputs: &[Option<Value>]) -> Result<Vec<Value>, OpError> {
    match given(inputs, 0)? {
        Value::Optional(Some(value)) => Ok(vec![(**value).clone()]),
        Value::Optional(None) => Err(OpError::invalid("the optional is empty")),
        other => Ok(vec![other.clone()]),
    }
}

fn infer(_: &Call, inputs: &[Option<&Fact>]) -> Result<Facts, OpError> {
    Ok(smallvec![match inputs.first() {
        Some(Some(fact)) if fact.kind != Kind::Optional => (*fact).clone(),
        _ => Fact::of_dtype(first_dtype(inputs)),
    }])
}

fn cases() -> Vec<Case> {
    let value = Value::from(tensor(&[1], &[1.0f32]));
    vec![
        Case::new("of an optional", &OPERATOR, 18)
            .input(Value::Optional(Some(value.clone().into())))
            .output(value.clone()),
        Case::new("of a tensor", &OPERATOR, 18).input(value.clone()).output(value),
    ]
}
