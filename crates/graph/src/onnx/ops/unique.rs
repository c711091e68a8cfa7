use super::common::{element_order, required, resolve_axis, take};
use crate::onnx::case::tensor;
use crate::onnx::{Attribute, Case, Operator};
use crate::ops::{Call, Facts, check_slices};
use crate::{Dim, Fact, OpError};
use halimede_tensor::{DType, Tensor, Value, element_count};
use smallvec::smallvec;
use std::cmp::Ordering;

/// The different elements, or slices along an axis, with where each first stands, which of them each
/// element is, and how often each stands (ONNX Unique, opset 11).
pub static OPERATOR: Operator = Operator::new("Unique").evaluate(evaluate).infer(infer).cases(cases);

fn evaluate(call: &Call, inputs: &[Option<Value>]) -> Result<Vec<Value>, OpError> {
    let x = required(inputs, 0)?;
    let (x, axis) = match call.attributes.int("axis")? {
        Some(axis) => (x.clone(), resolve_axis(axis, x.rank())?),
        None => (x.reshaped(&[x.len()])?, 0),
    };
    let size = x.shape()[axis];
    let outer = element_count(&x.shape()[..axis])?;
    let inner = element_count(&x.shape()[axis + 1..])?;
    check_slices(&x, size)?;
    let element = element_order(&x)?;
    let order = |a: usize, b: usize| -> Ordering {
        let at = |slice: usize, place: usize| (place / inner * size + slice) * inner + place % inner;
        let places = 0..outer * inner;
        places.map(|place| element(at(a, place), at(b, place))).find(|o| o.is_ne()).unwrap_or(Ordering::Equal)
    };

    let mut sorted: Vec<usize> = (0..size).collect();
    sorted.sort_by(|&a, &b| order(a, b).then(a.cmp(&b)));
    let mut groups: Vec<Vec<usize>> = Vec::new();
    for slice in sorted {
        match groups.last_mut() {
            Some(group) if order(group[0], slice).is_eq() => group.push(slice),
            _ => groups.push(vec![slice]),
        }
    }
    if !call.attributes.int_or("sorted", 1).map(|sorted| sorted != 0)? {
        groups.sort_by_key(|group| group[0]);
    }

    let first: Vec<i64> = groups.iter().map(|group| group[0] as i64).collect();
    let counts: Vec<i64> = groups.iter().map(|group| group.len() as i64).collect();
    let mut inverse = vec![0i64; size];
    for (index, group) in groups.iter().enumerate() {
        for &slice in group {
            inverse[slice] = index as i64;
        }
    }
    let list = |numbers: &[i64]| Tensor::from_slice(&[numbers.len()], numbers);
    Ok(vec![take(&x, axis, &first)?.into(), list(&first)?.into(), list(&inverse)?.into(), list(&counts)?.into()])
}

fn infer(call: &Call, inputs: &[Option<&Fact>]) -> Result<Facts, OpError> {
    let [Some(x), ..] = inputs else { return Ok(Facts::new()) };
    let values = match (x.dtype, call.attributes.int("axis")?, &x.shape) {
        (Some(dtype), None, _) => Fact::tensor(dtype, [Dim::unknown()]),
        (Some(dtype), Some(axis), Some(shape)) => {
            let mut shape = shape.clone();
            let axis = resolve_axis(axis, shape.len())?;
            shape[axis] = Dim::unknown();
            Fact::tensor(dtype, shape)
        }
        (dtype, _, _) => Fact::of_dtype(dtype),
    };
    let list = Fact::tensor(DType::I64, [Dim::unknown()]);
    Ok(smallvec![values, list.clone(), list.clone(), list])
}

fn cases() -> Vec<Case> {
    let list = |numbers: &[i64]| tensor(&[numbers.len()], numbers);
    vec![
        Case::new("in the order they come", &OPERATOR, 11)
            .attribute("sorted", Attribute::Int(0))
            .input(tensor(&[4], &[2.0f32, 1.0, 2.0, 3.0]))
            .output(tensor(&[3], &[2.0f32, 1.0, 3.0]))
            .output(list(&[0, 1, 3]))
            .output(list(&[0, 1, 0, 2]))
            .output(list(&[2, 1, 1])),
        Case::new("rows", &OPERATOR, 11)
            .attribute("axis", Attribute::Int(0))
            .input(tensor(&[3, 2], &[1u8, 0, 0, 9, 1, 0]))
            .output(tensor(&[2, 2], &[0u8, 9, 1, 0]))
            .output(list(&[1, 0]))
            .output(list(&[1, 0, 1]))
            .output(list(&[1, 2])),
    ]
}
