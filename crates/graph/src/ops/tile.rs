use super::inputs::{integers, required, shape, typed};
use super::movement::{Offsets, strides, take};
use super::{Facts, TensorOp, Tensors};
use crate::{Dim, Fact, OpError};
use halimede_tensor::{Shape, Tensor};
use smallvec::{SmallVec, smallvec};

/// Repeats along every axis (ONNX Tile). Inputs: data, repeats (i64).
#[derive(Debug, Clone, PartialEq)]
pub struct Tile;

impl TensorOp for Tile {
    fn infer(&self, inputs: &[Option<&Fact>]) -> Result<Facts, OpError> {
        let (data, repeats) = (required(inputs, 0)?, required(inputs, 1)?);
        let Some(dims) = &data.shape else {
            return Ok(smallvec![typed(data.dtype, repeats.count().map(|rank| smallvec![Dim::unknown(); rank]))]);
        };
        let shape = match repeats.dims() {
            Some(repeats) if repeats.len() != dims.len() => return Err(mismatch(repeats.len(), dims.len())),
            Some(repeats) => dims.iter().zip(repeats).map(|(dim, times)| dim.clone() * times).collect(),
            None => smallvec![Dim::unknown(); dims.len()],
        };
        let output = typed(data.dtype, Some(shape));
        let elements = match (data.dims(), output.count()) {
            (Some(part), Some(count)) if dims.len() == 1 && !part.is_empty() && count <= 64 => {
                Some(part.iter().cycle().take(count).cloned().collect())
            }
            _ => None,
        };
        Ok(smallvec![output.and_elements(elements)])
    }

    fn evaluate(&self, inputs: &[Option<&Tensor>]) -> Result<Tensors, OpError> {
        let (data, repeats) = (required(inputs, 0)?, required(inputs, 1)?);
        let repeats = shape(&integers(repeats)?)?;
        if repeats.len() != data.rank() {
            return Err(mismatch(repeats.len(), data.rank()));
        }
        // Every axis becomes two: the repetition, which does not move, and the axis itself.
        let view: Shape = repeats.iter().zip(data.shape()).flat_map(|(&times, &dim)| [times, dim]).collect();
        let view_strides: SmallVec<[isize; 6]> = strides(data.shape()).iter().flat_map(|&s| [0, s]).collect();
        let shape: Option<Shape> = repeats.iter().zip(data.shape()).map(|(&t, &d)| t.checked_mul(d)).collect();
        let shape = shape.ok_or_else(|| OpError::invalid(format!("repeats {repeats:?} of {:?}", data.shape())))?;
        Ok(smallvec![take(data, &shape, Offsets::new(&view, 0, &view_strides)?)?])
    }
}

fn mismatch(repeats: usize, rank: usize) -> OpError {
    OpError::invalid(format!("{repeats} repeats for a tensor of rank {rank}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_axis_repeats() {
        let data = Tensor::from_slice(&[2, 2], &[1i32, 2, 3, 4]).unwrap();
        let repeats = Tensor::from_slice(&[2], &[1i64, 2]).unwrap();
        let out = Tile.evaluate(&[Some(&data), Some(&repeats)]).unwrap().remove(0);
        assert_eq!(out, Tensor::from_slice(&[2, 4], &[1i32, 2, 1, 2, 3, 4, 3, 4]).unwrap());
        let none = Tensor::from_slice(&[2], &[0i64, 2]).unwrap();
        assert_eq!(Tile.evaluate(&[Some(&data), Some(&none)]).unwrap()[0].shape(), [0, 4]);
        let negative = Tensor::from_slice(&[2], &[-1i64, 2]).unwrap();
        assert!(Tile.evaluate(&[Some(&data), Some(&negative)]).is_err());
    }
}
