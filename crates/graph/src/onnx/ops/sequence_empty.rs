use super::common::sequence_fact;
use crate::OpError;
use crate::onnx::import::dtype_from_code;
use crate::onnx::{Case, Operator};
use crate::ops::Call;
use halimede_tensor::{DType, Value};
use smallvec::smallvec;

/// A sequence without values (ONNX SequenceEmpty, opset 11).
pub static OPERATOR: Operator = Operator::new("SequenceEmpty")
    .evaluate(|_, _| Ok(vec![Value::Sequence(Vec::new())]))
    .infer(|call, _| Ok(smallvec![sequence_fact(Some(dtype(call)?))]))
    .cases(|| vec![Case::new("empty", &OPERATOR, 11).output(Value::Sequence(Vec::new()))]);

fn dtype(call: &Call) -> Result<DType, OpError> {
    let code = call.attributes.int_or("dtype", 1)?;
    dtype_from_code(code).ok_or_else(|| OpError::invalid(format!("attribute 'dtype' is {code}, which is no datatype")))
}
