use super::common::{first_dtype, given, resolve_axis, sequence_fact};
use crate::OpError;
use crate::onnx::case::tensor;
use crate::onnx::{Attribute, Case, Operator};
use crate::ops::{Call, Slice, TensorOp, check_slices};
use halimede_tensor::{DType, Tensor, Value};
use smallvec::smallvec;

/// A tensor's parts along an axis as a sequence (ONNX SplitToSequence, opset 24).
pub static OPERATOR: Operator = Operator::new("SplitToSequence")
    .evaluate(evaluate)
    .infer(|_, inputs| Ok(smallvec![sequence_fact(first_dtype(&inputs[..inputs.len().min(1)]))]))
    .cases(cases);

fn evaluate(call: &Call, inputs: &[Option<Value>]) -> Result<Vec<Value>, OpError> {
    let data = given(inputs, 0)?.tensor()?;
    let axis = resolve_axis(call.attributes.int_or("axis", 0)?, data.rank())?;
    let size = data.shape()[axis];
    let split = inputs.get(1).and_then(Option::as_ref);
    let sizes = match split {
        Some(split) => sizes(split.tensor()?, data, size)?,
        None => {
            check_slices(data, size)?;
            vec![1; size]
        }
    };
    // Only slices of one element can lose their axis, and only where nobody asked for sizes.
    let squeeze = split.is_none() && !call.attributes.flag_or("keepdims", true)?;
    let mut start = 0;
    let mut parts = Vec::with_capacity(sizes.len());
    for size in sizes {
        let bound = |position: usize| Tensor::from_slice(&[1], &[position as i64]);
        let (first, last, along) = (bound(start)?, bound(start + size)?, bound(axis)?);
        let mut part = Slice.evaluate(&[Some(data), Some(&first), Some(&last), Some(&along)])?.remove(0);
        if squeeze {
            let mut shape = part.shape().to_vec();
            shape.remove(axis);
            part = part.reshaped(&shape)?;
        }
        parts.push(part.into());
        start += size;
    }
    Ok(vec![Value::Sequence(parts)])
}

/// One size for all parts (the last may be smaller), or the size of each.
fn sizes(split: &Tensor, data: &Tensor, total: usize) -> Result<Vec<usize>, OpError> {
    let split_as = |split: &Tensor| match split.dtype() {
        DType::I32 => Ok(split.slice::<i32>()?.iter().map(|&v| v.into()).collect()),
        _ => Ok::<Vec<i64>, OpError>(split.slice::<i64>()?.to_vec()),
    };
    let given: Vec<usize> = split_as(split)?
        .into_iter()
        .map(|size| usize::try_from(size).map_err(|_| OpError::invalid(format!("a part of size {size}"))))
        .collect::<Result<_, _>>()?;
    match given[..] {
        [0] if split.rank() == 0 => Err(OpError::invalid("parts of size 0")),
        [size] if split.rank() == 0 => {
            check_slices(data, total / size)?;
            Ok((0..total).step_by(size).map(|start| size.min(total - start)).collect())
        }
        _ if given.iter().try_fold(0usize, |sum, &size| sum.checked_add(size)) == Some(total) => Ok(given),
        _ => Err(OpError::invalid(format!("parts of sizes {given:?} do not make up {total}"))),
    }
}

fn cases() -> Vec<Case> {
    let data = tensor(&[3, 1], &[1.0f32, 2.0, 3.0]);
    let parts = Value::Sequence(vec![tensor(&[2, 1], &[1.0f32, 2.0]).into(), tensor(&[1, 1], &[3.0f32]).into()]);
    let rows = (1..4).map(|v| tensor(&[1], &[v as f32]).into()).collect();
    vec![
        Case::new("parts of two", &OPERATOR, 11).input(data.clone()).input(Tensor::scalar(2i64)).output(parts),
        Case::new("without the axis", &OPERATOR, 11)
            .attribute("keepdims", Attribute::Int(0))
            .input(data)
            .output(Value::Sequence(rows)),
    ]
}
