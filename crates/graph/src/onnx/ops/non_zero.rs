use super::common::required;
use crate::onnx::case::tensor;
use crate::onnx::{Case, Operator};
use crate::ops::{Call, Facts};
use crate::{Dim, Fact, OpError};
use halimede_tensor::{DType, Tensor, Value};
use smallvec::smallvec;

/// The places of the elements that are not zero, one column each (ONNX NonZero, opset 13).
pub static OPERATOR: Operator = Operator::new("NonZero").evaluate(evaluate).infer(infer).cases(cases);

fn evaluate(_call: &Call, inputs: &[Option<Value>]) -> Result<Vec<Value>, OpError> {
    let x = required(inputs, 0)?;
    let found: Vec<usize> = x.to_f64s()?.iter().enumerate().filter(|(_, v)| **v != 0.0).map(|(flat, _)| flat).collect();
    // A scalar counts as one element of one axis.
    let shape = if x.rank() == 0 { &[1] } else { x.shape() };
    let strides = halimede_tensor::strides(shape);
    let mut places = Vec::with_capacity(shape.len() * found.len());
    for (&size, &stride) in shape.iter().zip(&strides) {
        places.extend(found.iter().map(|flat| (flat / stride % size) as i64));
    }
    Ok(vec![Tensor::from_slice(&[shape.len(), found.len()], &places)?.into()])
}

fn infer(_call: &Call, inputs: &[Option<&Fact>]) -> Result<Facts, OpError> {
    let rank = inputs.first().copied().flatten().and_then(Fact::rank);
    let axes = rank.map_or_else(Dim::unknown, |rank| Dim::from(rank.max(1)));
    Ok(smallvec![Fact::tensor(DType::I64, [axes, Dim::unknown()])])
}

fn cases() -> Vec<Case> {
    vec![
        Case::new("of a matrix", &OPERATOR, 13)
            .input(tensor(&[2, 2], &[1.0f32, 0.0, -2.0, 3.0]))
            .output(tensor(&[2, 3], &[0i64, 1, 1, 0, 0, 1])),
    ]
}
