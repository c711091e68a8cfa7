use super::common::{count, given, sequence};
use crate::Fact;
use crate::onnx::case::tensor;
use crate::onnx::{Case, Operator};
use halimede_tensor::{DType, Tensor, Value};
use smallvec::smallvec;

/// How many values a sequence has (ONNX SequenceLength, opset 11).
pub static OPERATOR: Operator = Operator::new("SequenceLength")
    .evaluate(|_, inputs| Ok(vec![count(sequence(given(inputs, 0)?)?.len())]))
    .infer(|_, _| Ok(smallvec![Fact::tensor(DType::I64, [])]))
    .cases(cases);

fn cases() -> Vec<Case> {
    let one = Value::Sequence(vec![tensor(&[2], &[1i64, 2]).into()]);
    vec![Case::new("one value", &OPERATOR, 11).input(one).output(Tensor::scalar(1i64))]
}
