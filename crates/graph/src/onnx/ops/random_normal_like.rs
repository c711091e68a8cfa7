use super::common::{dtype_or, infer_like, normal_numbers, required};
use crate::OpError;
use crate::onnx::Operator;
use crate::ops::Call;
use halimede_tensor::{Tensor, Value};

/// Numbers of a normal distribution under the input's shape (ONNX RandomNormalLike, opset 22).
pub static OPERATOR: Operator = Operator::new("RandomNormalLike").evaluate(evaluate).infer(infer_like).random();

fn evaluate(call: &Call, inputs: &[Option<Value>]) -> Result<Vec<Value>, OpError> {
    let like = required(inputs, 0)?;
    let numbers = normal_numbers(call, like.len())?;
    Ok(vec![Tensor::from_f64s(dtype_or(call, like.dtype())?, like.shape(), &numbers)?.into()])
}
