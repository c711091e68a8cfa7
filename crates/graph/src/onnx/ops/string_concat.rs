use super::common::{broadcast_dims, broadcast_index, required};
use crate::onnx::case::strings;
use crate::onnx::{Case, Operator};
use crate::ops::{Call, Facts};
use crate::{Fact, OpError};
use halimede_tensor::{DType, Tensor, Value, broadcast, element_count};
use smallvec::smallvec;

/// Joins the strings of two tensors that broadcast (ONNX StringConcat, opset 20).
pub static OPERATOR: Operator = Operator::new("StringConcat").evaluate(evaluate).infer(infer).cases(cases);

fn evaluate(_call: &Call, inputs: &[Option<Value>]) -> Result<Vec<Value>, OpError> {
    let (x, y) = (required(inputs, 0)?, required(inputs, 1)?);
    let (left, right) = (x.strings()?, y.strings()?);
    let shape = broadcast(x.shape(), y.shape())?;
    let join = |flat: usize| {
        let (a, b) = (broadcast_index(flat, &shape, x.shape()), broadcast_index(flat, &shape, y.shape()));
        [left[a].as_slice(), right[b].as_slice()].concat()
    };
    let joined = (0..element_count(&shape)?).map(join).collect();
    Ok(vec![Tensor::from_strings(&shape, joined)?.into()])
}

fn infer(_call: &Call, inputs: &[Option<&Fact>]) -> Result<Facts, OpError> {
    let [Some(x), Some(y)] = inputs else { return Ok(Facts::new()) };
    Ok(smallvec![match (&x.shape, &y.shape) {
        (Some(x), Some(y)) => Fact::tensor(DType::String, broadcast_dims(x, y)?),
        _ => Fact::of_dtype(Some(DType::String)),
    }])
}

fn cases() -> Vec<Case> {
    vec![
        Case::new("an ending for each", &OPERATOR, 20)
            .input(strings(&[2], &["abc", "é"]))
            .input(strings(&[], &[".com"]))
            .output(strings(&[2], &["abc.com", "é.com"])),
    ]
}
