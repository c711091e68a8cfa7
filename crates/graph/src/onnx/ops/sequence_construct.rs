use super::common::{first_dtype, given, sequence_fact};
use crate::OpError;
use crate::onnx::case::tensor;
use crate::onnx::{Case, Operator};
use crate::ops::Call;
use halimede_tensor::Value;
use smallvec::smallvec;

/// A sequence of the inputs (ONNX SequenceConstruct, opset 11).
pub static OPERATOR: Operator = Operator::new("SequenceConstruct")
    .evaluate(evaluate)
    .infer(|_, inputs| Ok(smallvec![sequence_fact(first_dtype(inputs))]))
    .cases(cases);

fn evaluate(_: &Call, inputs: &[Option<Value>]) -> Result<Vec<Value>, OpError> {
    let values = (0..inputs.len()).map(|index| given(inputs, index).cloned());
    Ok(vec![Value::Sequence(values.collect::<Result<_, _>>()?)])
}

fn cases() -> Vec<Case> {
    let (a, b) = (tensor(&[1], &[1i64]), tensor(&[2], &[2i64, 3]));
    let both = Value::Sequence(vec![a.clone().into(), b.clone().into()]);
    vec![Case::new("two shapes", &OPERATOR, 11).input(a).input(b).output(both)]
}
