use crate::onnx::case::tensor;
use crate::onnx::{Attribute, Case, Operator};
use crate::ops::{Call, Facts};
use crate::{Fact, Kind, OpError};
use halimede_tensor::{DType, Value};
use smallvec::smallvec;

/// An optional that holds the input, or nothing without one (ONNX Optional, opset 15).
pub static OPERATOR: Operator = Operator::new("Optional").evaluate(evaluate).infer(infer).cases(cases);

fn evaluate(_: &Call, inputs: &[Option<Value>]) -> Result<Vec<Value>, OpError> {
    Ok(vec![Value::Optional(inputs.first().cloned().flatten().map(Box::new))])
}

fn infer(call: &Call, inputs: &[Option<&Fact>]) -> Result<Facts, OpError> {
    let declared = match call.attributes.find("type") {
        Some(Attribute::Type(dtype)) => *dtype,
        _ => None,
    };
    let dtype = inputs.first().copied().flatten().and_then(|fact| fact.dtype).or(declared);
    Ok(smallvec![Fact { kind: Kind::Optional, dtype, ..Fact::default() }])
}

fn cases() -> Vec<Case> {
    let value = Value::from(tensor(&[1], &[1.0f32]));
    vec![
        Case::new("something", &OPERATOR, 15).input(value.clone()).output(Value::Optional(Some(value.into()))),
        Case::new("nothing", &OPERATOR, 15)
            .attribute("type", Attribute::Type(Some(DType::F32)))
            .output(Value::Optional(None)),
    ]
}
