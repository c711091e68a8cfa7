use crate::onnx::case::tensor;
use crate::onnx::{Case, Operator};
use crate::ops::Call;
use crate::{Fact, OpError};
use halimede_tensor::{DType, Tensor, Value};
use smallvec::smallvec;

/// Whether an optional holds something (ONNX OptionalHasElement, opset 18); a tensor or a sequence is there.
pub static OPERATOR: Operator = Operator::new("OptionalHasElement")
    .evaluate(evaluate)
    .infer(|_, _| Ok(smallvec![Fact::tensor(DType::Bool, [])]))
    .cases(cases);

fn evaluate(_: &Call, inputs: &[Option<Value>]) -> Result<Vec<Value>, OpError> {
    let there = !matches!(inputs.first(), None | Some(None) | Some(Some(Value::Optional(None))));
    Ok(vec![Tensor::from_bools(&[], &[there])?.into()])
}

fn cases() -> Vec<Case> {
    let answer = |there| Tensor::from_bools(&[], &[there]).expect("one element");
    vec![
        Case::new("a tensor", &OPERATOR, 18).input(tensor(&[1], &[1.0f32])).output(answer(true)),
        Case::new("an empty optional", &OPERATOR, 18).input(Value::Optional(None)).output(answer(false)),
        Case::new("no input", &OPERATOR, 18).output(answer(false)),
    ]
}
