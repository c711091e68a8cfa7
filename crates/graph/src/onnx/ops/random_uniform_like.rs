use super::common::{dtype_or, infer_like, required, uniform_numbers};
use crate::OpError;
use crate::onnx::Operator;
use crate::ops::Call;
use halimede_tensor::{Tensor, Value};

/// Numbers of a uniform distribution under the input's shape (ONNX RandomUniformLike, opset 22).
pub static OPERATOR: Operator = Operator::new("RandomUniformLike").evaluate(evaluate).infer(infer_like).random();

fn evaluate(call: &Call, inputs: &[Option<Value>]) -> Result<Vec<Value>, OpError> {
    let like = required(inputs, 0)?;
    let numbers = uniform_numbers(call, like.len())?;
    Ok(vec![Tensor::from_f64s(dtype_or(call, like.dtype())?, like.shape(), &numbers)?.into()])
}
