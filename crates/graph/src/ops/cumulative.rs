use super::inputs::{self, integers, like, required};
use super::numeric::{Numbers, Split};
use super::{Facts, TensorOp, Tensors};
use crate::{Fact, OpError};
use halimede_tensor::Tensor;
use smallvec::smallvec;

/// What a running total does.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum CumulativeKind {
    /// Sum (ONNX CumSum).
    Sum,
    /// Product (ONNX CumProd).
    Product,
}

/// Running total along an axis. Inputs: data, axis (an integer scalar).
#[derive(Debug, Clone, PartialEq)]
pub struct Cumulative {
    /// Sum or product.
    pub kind: CumulativeKind,
    /// Leave out the element itself.
    pub exclusive: bool,
    /// Run from the end.
    pub reverse: bool,
}

impl TensorOp for Cumulative {
    fn infer(&self, inputs: &[Option<&Fact>]) -> Result<Facts, OpError> {
        Ok(smallvec![like(required(inputs, 0)?)])
    }

    fn evaluate(&self, inputs: &[Option<&Tensor>]) -> Result<Tensors, OpError> {
        let (data, axis) = (required(inputs, 0)?, integers(required(inputs, 1)?)?);
        let axis = match axis[..] {
            [axis] => inputs::axis(axis, data.rank())?,
            _ => return Err(OpError::invalid(format!("the axis of a running total is {axis:?}"))),
        };
        let split = Split::new(data.shape(), |other| other == axis)?;
        let numbers = match (Numbers::read(data)?, self.kind) {
            (Numbers::Float(v), CumulativeKind::Sum) => Numbers::Float(self.run(split, v, 0.0, |a, b| a + b)),
            (Numbers::Float(v), CumulativeKind::Product) => Numbers::Float(self.run(split, v, 1.0, |a, b| a * b)),
            (Numbers::Int(v), CumulativeKind::Sum) => Numbers::Int(self.run(split, v, 0, i64::wrapping_add)),
            (Numbers::Int(v), CumulativeKind::Product) => Numbers::Int(self.run(split, v, 1, i64::wrapping_mul)),
        };
        Ok(smallvec![numbers.write(data.dtype(), data.shape())?])
    }
}

impl Cumulative {
    fn run<T: Copy>(&self, split: Split, mut values: Vec<T>, neutral: T, join: impl Fn(T, T) -> T) -> Vec<T> {
        let Split { starts, mut steps } = split;
        if self.reverse {
            steps.reverse();
        }
        for start in starts {
            let mut total = neutral;
            for &step in &steps {
                let element = values[start + step];
                let before = total;
                total = join(total, element);
                values[start + step] = if self.exclusive { before } else { total };
            }
        }
        values
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_direction() {
        let data = Tensor::from_slice(&[3], &[1i32, 2, 3]).unwrap();
        let run = |kind, exclusive, reverse| {
            let op = Cumulative { kind, exclusive, reverse };
            op.evaluate(&[Some(&data), Some(&Tensor::scalar(-1i32))]).unwrap()[0].slice::<i32>().unwrap().to_vec()
        };
        assert_eq!(run(CumulativeKind::Sum, false, false), [1, 3, 6]);
        assert_eq!(run(CumulativeKind::Sum, true, true), [5, 3, 0]);
        assert_eq!(run(CumulativeKind::Product, true, false), [1, 1, 2]);
    }
}
