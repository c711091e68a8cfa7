use super::common::{Random, dtype_or, required};
use crate::onnx::case::tensor;
use crate::onnx::{Attribute, Case, Operator};
use crate::ops::{Call, Facts};
use crate::{Dim, Fact, OpError};
use halimede_tensor::{DType, Tensor, Value, element_count};
use smallvec::smallvec;

/// Draws classes by rows of unnormalised log-probabilities (ONNX Multinomial, opset 22).
pub static OPERATOR: Operator = Operator::new("Multinomial").evaluate(evaluate).infer(infer).random().cases(cases);

fn evaluate(call: &Call, inputs: &[Option<Value>]) -> Result<Vec<Value>, OpError> {
    let x = required(inputs, 0)?;
    let samples = samples(call)?;
    let [batch, classes] = *x.shape() else { return Err(OpError::invalid("the input must be [batch, classes]")) };
    if classes == 0 {
        return Err(OpError::invalid("there is no class to draw"));
    }
    let mut random = Random::new(&call.attributes)?;
    let mut drawn = Vec::with_capacity(element_count(&[batch, samples])?);
    for row in x.to_f64s()?.chunks_exact(classes) {
        let largest = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let mut sum = 0.0;
        let below: Vec<f64> = row
            .iter()
            .map(|logit| {
                sum += (logit - largest).exp();
                sum
            })
            .collect();
        for _ in 0..samples {
            let at = random.uniform() * sum;
            drawn.push(below.partition_point(|&edge| edge <= at).min(classes - 1) as i64);
        }
    }
    Ok(vec![Tensor::from_i64s(dtype_or(call, DType::I32)?, &[batch, samples], &drawn)?.into()])
}

fn samples(call: &Call) -> Result<usize, OpError> {
    let size = call.attributes.int_or("sample_size", 1)?;
    usize::try_from(size).map_err(|_| OpError::invalid(format!("sample_size is {size}; it cannot be negative")))
}

fn infer(call: &Call, inputs: &[Option<&Fact>]) -> Result<Facts, OpError> {
    let shape = inputs.first().copied().flatten().and_then(|x| x.shape.as_ref());
    let batch = shape.and_then(|shape| shape.first().cloned()).unwrap_or_else(Dim::unknown);
    Ok(smallvec![Fact::tensor(dtype_or(call, DType::I32)?, [batch, Dim::from(samples(call)?)])])
}

fn cases() -> Vec<Case> {
    vec![
        Case::new("one class is certain", &OPERATOR, 7)
            .attribute("sample_size", Attribute::Int(3))
            .input(tensor(&[1, 3], &[-1000.0f32, 0.0, -1000.0]))
            .output(tensor(&[1, 3], &[1i32, 1, 1])),
    ]
}
