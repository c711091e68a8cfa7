use super::inputs::{required, typed};
use super::{Facts, TensorOp, Tensors};
use crate::{Dim, Fact, OpError};
use halimede_tensor::{DType, Tensor};
use smallvec::smallvec;
use std::ops::Range;

/// The dimensions `start..end` of a tensor as i64 (ONNX Shape). Inputs: data.
#[derive(Debug, Clone, PartialEq)]
pub struct ShapeOf {
    /// First axis; negative from the end.
    pub start: i64,
    /// One past the last axis; negative from the end; the rank where `None`.
    pub end: Option<i64>,
}

impl TensorOp for ShapeOf {
    fn infer(&self, inputs: &[Option<&Fact>]) -> Result<Facts, OpError> {
        let Some(shape) = &required(inputs, 0)?.shape else {
            return Ok(smallvec![typed(Some(DType::I64), Some(smallvec![Dim::unknown()]))]);
        };
        let dims = &shape[self.axes(shape.len())];
        let fact = Fact::tensor(DType::I64, [Dim::from(dims.len())]);
        Ok(smallvec![fact.and_elements(Some(dims.to_vec()))])
    }

    fn evaluate(&self, inputs: &[Option<&Tensor>]) -> Result<Tensors, OpError> {
        let shape = required(inputs, 0)?.shape();
        let dims: Vec<i64> = shape[self.axes(shape.len())].iter().map(|&d| d as i64).collect();
        Ok(smallvec![Tensor::from_slice(&[dims.len()], &dims)?])
    }
}

impl ShapeOf {
    /// The axes meant, clamped to those there are.
    fn axes(&self, rank: usize) -> Range<usize> {
        let resolve = |axis: i64| {
            let axis = if axis < 0 { axis.saturating_add(rank as i64) } else { axis };
            axis.clamp(0, rank as i64) as usize
        };
        let (start, end) = (resolve(self.start), self.end.map_or(rank, resolve));
        start..end.max(start)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_part_of_the_shape() {
        let data = Tensor::zeros(DType::String, &[2, 3, 4]).unwrap();
        let dims =
            |start, end| ShapeOf { start, end }.evaluate(&[Some(&data)]).unwrap()[0].slice::<i64>().unwrap().to_vec();
        assert_eq!(dims(0, None), [2, 3, 4]);
        assert_eq!(dims(-2, Some(-1)), [3]);
        assert_eq!(dims(-9, Some(9)), [2, 3, 4]);
        assert_eq!(dims(2, Some(1)), [] as [i64; 0]);
    }

    #[test]
    fn symbols_become_elements() {
        let n = Dim::symbol("n");
        let data = Fact::tensor(DType::F32, [n.clone(), Dim::from(3)]);
        let fact = ShapeOf { start: 0, end: None }.infer(&[Some(&data)]).unwrap().remove(0);
        assert_eq!(fact.dims(), Some(vec![n, Dim::from(3)]));
        let unknown = ShapeOf { start: 0, end: None }.infer(&[Some(&Fact::default())]).unwrap().remove(0);
        assert_eq!(unknown.rank(), Some(1));
    }
}
