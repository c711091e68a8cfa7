use super::common::{Random, dtype_or, infer_like, required};
use crate::OpError;
use crate::onnx::case::tensor;
use crate::onnx::{Case, Operator};
use crate::ops::Call;
use halimede_tensor::{Tensor, Value};

/// 1 with the probability that each element says, else 0 (ONNX Bernoulli, opset 22).
pub static OPERATOR: Operator = Operator::new("Bernoulli").evaluate(evaluate).infer(infer_like).random().cases(cases);

fn evaluate(call: &Call, inputs: &[Option<Value>]) -> Result<Vec<Value>, OpError> {
    let x = required(inputs, 0)?;
    let mut random = Random::new(&call.attributes)?;
    let drawn: Vec<i64> = x.to_f64s()?.iter().map(|&p| i64::from(random.uniform() < p)).collect();
    Ok(vec![Tensor::from_i64s(dtype_or(call, x.dtype())?, x.shape(), &drawn)?.into()])
}

fn cases() -> Vec<Case> {
    vec![
        Case::new("never and always", &OPERATOR, 15)
            .input(tensor(&[2], &[0.0f32, 1.0]))
            .output(tensor(&[2], &[0.0f32, 1.0])),
    ]
}
