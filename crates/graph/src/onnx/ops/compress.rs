use super::common::{required, resolve_axis, take};
use crate::onnx::case::{bools, tensor};
use crate::onnx::{Attribute, Case, Operator};
use crate::ops::{Call, Facts};
use crate::{Dim, Fact, OpError};
use halimede_tensor::Value;
use smallvec::smallvec;

/// The slices along an axis, or the elements, that a condition picks (ONNX Compress, opset 11).
pub static OPERATOR: Operator = Operator::new("Compress").evaluate(evaluate).infer(infer).cases(cases);

fn evaluate(call: &Call, inputs: &[Option<Value>]) -> Result<Vec<Value>, OpError> {
    let (x, condition) = (required(inputs, 0)?, required(inputs, 1)?);
    let (x, axis) = match call.attributes.int("axis")? {
        Some(axis) => (x.clone(), resolve_axis(axis, x.rank())?),
        None => (x.reshaped(&[x.len()])?, 0),
    };
    // The condition may be shorter than the axis; what it does not speak of is left out.
    let picked: Vec<i64> = condition.slice::<u8>()?.iter().zip(0..).filter(|(c, _)| **c != 0).map(|(_, i)| i).collect();
    Ok(vec![take(&x, axis, &picked)?.into()])
}

fn infer(call: &Call, inputs: &[Option<&Fact>]) -> Result<Facts, OpError> {
    let [Some(x), ..] = inputs else { return Ok(Facts::new()) };
    let Some(dtype) = x.dtype else { return Ok(Facts::new()) };
    Ok(smallvec![match (call.attributes.int("axis")?, &x.shape) {
        (None, _) => Fact::tensor(dtype, [Dim::unknown()]),
        (Some(axis), Some(shape)) => {
            let mut shape = shape.clone();
            let axis = resolve_axis(axis, shape.len())?;
            shape[axis] = Dim::unknown();
            Fact::tensor(dtype, shape)
        }
        (Some(_), None) => Fact::of_dtype(Some(dtype)),
    }])
}

fn cases() -> Vec<Case> {
    let data = tensor(&[3, 2], &[1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0]);
    vec![
        Case::new("rows", &OPERATOR, 11)
            .attribute("axis", Attribute::Int(0))
            .input(data.clone())
            .input(bools(&[3], &[false, true, true]))
            .output(tensor(&[2, 2], &[3.0f32, 4.0, 5.0, 6.0])),
        Case::new("elements, a short condition", &OPERATOR, 11)
            .input(data)
            .input(bools(&[5], &[false, true, false, false, true]))
            .output(tensor(&[2], &[2.0f32, 5.0])),
    ]
}
