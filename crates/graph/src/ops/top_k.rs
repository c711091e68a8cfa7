use super::inputs::{check_axis, integers, required, typed};
use super::movement::take;
use super::numeric::{Numbers, Split};
use super::{Facts, TensorOp, Tensors};
use crate::{Dim, Fact, OpError};
use halimede_tensor::{DType, Shape, Tensor};
use smallvec::smallvec;
use std::cmp::Ordering;

/// The k largest or smallest along an axis with their indices (ONNX TopK). Inputs: data, k (i64 of one
/// element). Outputs: values, i64 indices; among equals the lower index comes first.
#[derive(Debug, Clone, PartialEq)]
pub struct TopK {
    /// Axis, resolved to be non-negative.
    pub axis: usize,
    /// Largest instead of smallest.
    pub largest: bool,
    /// In order of value.
    pub sorted: bool,
}

impl TensorOp for TopK {
    fn infer(&self, inputs: &[Option<&Fact>]) -> Result<Facts, OpError> {
        let (data, k) = (required(inputs, 0)?, required(inputs, 1)?);
        let mut shape = data.shape.clone();
        if let Some(shape) = &mut shape {
            check_axis(self.axis, shape.len())?;
            shape[self.axis] = k.dims().and_then(|mut dims| dims.pop()).unwrap_or_else(Dim::unknown);
        }
        Ok(smallvec![typed(data.dtype, shape.clone()), typed(Some(DType::I64), shape)])
    }

    fn evaluate(&self, inputs: &[Option<&Tensor>]) -> Result<Tensors, OpError> {
        let (data, k) = (required(inputs, 0)?, integers(required(inputs, 1)?)?);
        check_axis(self.axis, data.rank())?;
        let size = data.shape()[self.axis];
        let k = match k[..] {
            [k] if (0..=size as i64).contains(&k) => k as usize,
            _ => return Err(OpError::invalid(format!("k is {k:?} for an axis of {size} elements"))),
        };
        let Split { starts, steps } = Split::new(data.shape(), |axis| axis == self.axis)?;
        let numbers = Numbers::read(data)?;
        let unsigned = data.dtype() == DType::U64;
        let compare = |a: usize, b: usize| match &numbers {
            // NaN counts as larger than infinity; both zeros are equal.
            Numbers::Float(v) if v[a] == v[b] => Ordering::Equal,
            Numbers::Float(v) => v[a].total_cmp(&v[b]),
            Numbers::Int(v) if unsigned => (v[a] as u64).cmp(&(v[b] as u64)),
            Numbers::Int(v) => v[a].cmp(&v[b]),
        };
        let mut shape: Shape = data.shape().into();
        shape[self.axis] = k;
        let inner: usize = shape[self.axis + 1..].iter().product();
        let count = shape.iter().product();
        let (mut places, mut indices) = (vec![0; count], vec![0i64; count]);
        for (row, start) in starts.enumerate() {
            let mut order: Vec<usize> = (0..size).collect();
            // A stable sort keeps the lower index first.
            order.sort_by(|&a, &b| {
                let order = compare(start + steps[a], start + steps[b]);
                if self.largest { order.reverse() } else { order }
            });
            for (rank, &index) in order[..k].iter().enumerate() {
                let at = (row / inner.max(1) * k + rank) * inner + row % inner.max(1);
                (places[at], indices[at]) = (start + steps[index], index as i64);
            }
        }
        let values = take(data, &shape, places.into_iter())?;
        Ok(smallvec![values, Tensor::from_slice(&shape, &indices)?])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn largest_and_smallest() {
        let data = Tensor::from_slice(&[2, 3], &[1f32, 3.0, 3.0, 0.0, f32::NAN, -1.0]).unwrap();
        let run = |largest, axis, k: i64| {
            let k = Tensor::from_slice(&[1], &[k]).unwrap();
            let out = TopK { axis, largest, sorted: true }.evaluate(&[Some(&data), Some(&k)])?;
            Ok::<_, OpError>(out[1].slice::<i64>()?.to_vec())
        };
        assert_eq!(run(true, 1, 2).unwrap(), [1, 2, 1, 0]);
        assert_eq!(run(false, 1, 2).unwrap(), [0, 1, 2, 0]);
        assert_eq!(run(true, 0, 1).unwrap(), [0, 1, 0]);
        assert_eq!(run(true, 1, 0).unwrap(), []);
        assert!(run(true, 1, 4).is_err());
    }
}
