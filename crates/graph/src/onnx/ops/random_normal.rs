use super::common::{dtype_or, normal_numbers, shape_attribute};
use crate::onnx::Operator;
use crate::ops::{Call, Facts};
use crate::{Dim, Fact, OpError};
use halimede_tensor::{DType, Tensor, Value, element_count};
use smallvec::smallvec;

/// Numbers of a normal distribution under a given shape (ONNX RandomNormal, opset 22).
pub static OPERATOR: Operator = Operator::new("RandomNormal").evaluate(evaluate).infer(infer).random();

fn evaluate(call: &Call, _inputs: &[Option<Value>]) -> Result<Vec<Value>, OpError> {
    let shape = shape_attribute(call)?;
    let numbers = normal_numbers(call, element_count(&shape)?)?;
    Ok(vec![Tensor::from_f64s(dtype_or(call, DType::F32)?, &shape, &numbers)?.into()])
}

fn infer(call: &Call, _inputs: &[Option<&Fact>]) -> Result<Facts, OpError> {
    let shape = shape_attribute(call)?;
    Ok(smallvec![Fact::tensor(dtype_or(call, DType::F32)?, shape.into_iter().map(Dim::from))])
}
