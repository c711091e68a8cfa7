use super::inputs::{check_axis, required, typed};
use super::numeric::{Numbers, Split};
use super::{Facts, TensorOp, Tensors};
use crate::{Dim, Fact, OpError};
use halimede_tensor::{DType, Shape, Tensor};
use smallvec::smallvec;

/// Index of the largest or smallest element along an axis (ONNX ArgMax, ArgMin).
///
/// Inputs: data. Outputs: i64 indices.
#[derive(Debug, Clone, PartialEq)]
pub struct ArgReduce {
    /// Largest instead of smallest.
    pub largest: bool,
    /// Axis, resolved to be non-negative.
    pub axis: usize,
    /// Keep the axis with size 1.
    pub keep_dims: bool,
    /// Among equals, the last instead of the first.
    pub last: bool,
}

impl TensorOp for ArgReduce {
    fn infer(&self, inputs: &[Option<&Fact>]) -> Result<Facts, OpError> {
        let data = required(inputs, 0)?;
        let shape = match &data.shape {
            Some(shape) => Some(self.shape(shape, Dim::from(1))?),
            None => None,
        };
        Ok(smallvec![typed(Some(DType::I64), shape)])
    }

    fn evaluate(&self, inputs: &[Option<&Tensor>]) -> Result<Tensors, OpError> {
        let data = required(inputs, 0)?;
        let shape: Shape = self.shape(data.shape(), 1)?;
        if data.shape()[self.axis] == 0 && !shape.contains(&0) {
            return Err(OpError::invalid("there is no largest or smallest of 0 elements"));
        }
        let Split { starts, steps } = Split::new(data.shape(), |axis| axis == self.axis)?;
        let indices: Vec<i64> = match Numbers::read(data)? {
            Numbers::Float(v) => starts.map(|start| self.find(steps.iter().map(|&s| v[start + s]))).collect(),
            Numbers::Int(v) if data.dtype() == DType::U64 => {
                starts.map(|start| self.find(steps.iter().map(|&s| v[start + s] as u64))).collect()
            }
            Numbers::Int(v) => starts.map(|start| self.find(steps.iter().map(|&s| v[start + s]))).collect(),
        };
        Ok(smallvec![Tensor::from_slice(&shape, &indices)?])
    }
}

impl ArgReduce {
    fn shape<D: Clone, L: FromIterator<D>>(&self, shape: &[D], one: D) -> Result<L, OpError> {
        check_axis(self.axis, shape.len())?;
        let kept = |(axis, dim): (usize, &D)| match axis == self.axis {
            false => Some(dim.clone()),
            true => self.keep_dims.then(|| one.clone()),
        };
        Ok(shape.iter().enumerate().filter_map(kept).collect())
    }

    fn find<T: PartialOrd>(&self, values: impl Iterator<Item = T>) -> i64 {
        let mut best: Option<(i64, T)> = None;
        for (index, value) in values.enumerate() {
            let better = best.as_ref().is_none_or(|(_, best)| {
                (if self.largest { value > *best } else { value < *best }) || (self.last && value == *best)
            });
            if better {
                best = Some((index as i64, value));
            }
        }
        best.map_or(0, |(index, _)| index)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_and_last_of_equals() {
        let data = Tensor::from_slice(&[2, 3], &[2f32, 2.0, 1.0, 1.0, 3.0, 3.0]).unwrap();
        let run = |largest, last| {
            let op = ArgReduce { largest, axis: 1, keep_dims: true, last };
            op.evaluate(&[Some(&data)]).unwrap()[0].slice::<i64>().unwrap().to_vec()
        };
        assert_eq!([run(true, false), run(true, true), run(false, false)], [[0, 1], [1, 2], [2, 0]]);
        let op = ArgReduce { largest: true, axis: 0, keep_dims: false, last: false };
        assert_eq!(op.evaluate(&[Some(&data)]).unwrap()[0].shape(), [3]);
        assert!(op.evaluate(&[Some(&Tensor::zeros(DType::F32, &[0]).unwrap())]).is_err());
    }
}
