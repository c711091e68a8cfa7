use super::inputs::{self, integers, optional, required, typed};
use super::movement::{strides, take_or};
use super::{Facts, TensorOp, Tensors};
use crate::{Dim, Dims, Fact, OpError};
use halimede_tensor::{DType, Shape, Tensor, element_count};
use smallvec::smallvec;

/// What stands in a border.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum PadMode {
    /// One value.
    Constant,
    /// The nearest element.
    Edge,
    /// The elements mirrored, without the edge itself.
    Reflect,
    /// The elements from the other end.
    Wrap,
}

/// Adds or, where negative, removes a border (ONNX Pad). Inputs: data, pads (i64, all befores then all
/// afters), optionally the value, optionally the axes that pads speaks of.
#[derive(Debug, Clone, PartialEq)]
pub struct Pad {
    /// What stands in the border.
    pub mode: PadMode,
}

impl TensorOp for Pad {
    fn infer(&self, inputs: &[Option<&Fact>]) -> Result<Facts, OpError> {
        let data = required(inputs, 0)?;
        let Some(shape) = &data.shape else { return Ok(smallvec![typed(data.dtype, None)]) };
        let pads = required(inputs, 1)?.dims();
        let axes = match optional(inputs, 3) {
            Some(axes) => axes.ints(),
            None => Some((0..shape.len() as i64).collect()),
        };
        let (Some(pads), Some(axes)) = (pads, axes) else {
            return Ok(smallvec![typed(data.dtype, Some(smallvec![Dim::unknown(); shape.len()]))]);
        };
        let axes = resolve_axes(&axes, pads.len(), shape.len())?;
        let mut output: Dims = shape.clone();
        for (index, &axis) in axes.iter().enumerate() {
            output[axis] = output[axis].clone() + pads[index].clone() + pads[axes.len() + index].clone();
            if output[axis].known().is_some_and(|size| size < 0) {
                return Err(OpError::invalid(format!("pads {pads:?} remove more than {shape:?} has")));
            }
        }
        Ok(smallvec![typed(data.dtype, Some(output))])
    }

    fn evaluate(&self, inputs: &[Option<&Tensor>]) -> Result<Tensors, OpError> {
        let data = required(inputs, 0)?;
        let pads = integers(required(inputs, 1)?)?;
        let axes = optional(inputs, 3).map(integers).transpose()?;
        let axes = resolve_axes(&axes.unwrap_or_else(|| (0..data.rank() as i64).collect()), pads.len(), data.rank())?;
        let strides = strides(data.shape());
        // Per axis of the output, where each index lies in the data.
        let mut sources: Vec<Vec<Option<usize>>> =
            data.shape().iter().map(|&size| (0..size).map(Some).collect()).collect();
        for (index, &axis) in axes.iter().enumerate() {
            sources[axis] = self.sources(data.shape()[axis], pads[index], pads[axes.len() + index])?;
        }
        let shape: Shape = sources.iter().map(Vec::len).collect();
        let mut index: Shape = smallvec![0; shape.len()];
        let positions = (0..element_count(&shape)?).map(|_| {
            let position = (0..shape.len())
                .map(|axis| sources[axis][index[axis]].map(|at| at * strides[axis] as usize))
                .sum::<Option<usize>>();
            for axis in (0..shape.len()).rev() {
                index[axis] += 1;
                if index[axis] < shape[axis] {
                    break;
                }
                index[axis] = 0;
            }
            position
        });
        let fill = optional(inputs, 2).filter(|fill| !fill.is_empty());
        Ok(smallvec![take_or(data, fill, &shape, positions)?])
    }
}

impl Pad {
    fn sources(&self, size: usize, before: i64, after: i64) -> Result<Vec<Option<usize>>, OpError> {
        let length = (size as i64).saturating_add(before).saturating_add(after);
        let length = usize::try_from(length)
            .map_err(|_| OpError::invalid(format!("pads {before} and {after} remove more than {size} elements")))?;
        // Refused here where there is no room for one such axis.
        Tensor::zeros(DType::Complex128, &[length])?;
        if size == 0 && length > 0 && self.mode != PadMode::Constant {
            return Err(OpError::invalid("a border made from an axis of size 0"));
        }
        let at = |index: usize| {
            let (position, size) = (index as i64 - before, size as i64);
            let inside = (0..size).contains(&position).then_some(position);
            inside.or_else(|| match self.mode {
                PadMode::Constant => None,
                PadMode::Edge => Some(position.clamp(0, size - 1)),
                PadMode::Wrap => Some(position.rem_euclid(size)),
                PadMode::Reflect if size == 1 => Some(0),
                PadMode::Reflect => {
                    let back = position.rem_euclid(2 * (size - 1));
                    Some(back.min(2 * (size - 1) - back))
                }
            })
        };
        Ok((0..length).map(|index| at(index).map(|position| position as usize)).collect())
    }
}

fn resolve_axes(axes: &[i64], pads: usize, rank: usize) -> Result<Vec<usize>, OpError> {
    if pads != 2 * axes.len() {
        return Err(OpError::invalid(format!("{pads} pads for {} axes, which need twice as many", axes.len())));
    }
    axes.iter().map(|&axis| inputs::axis(axis, rank)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(mode: PadMode, pads: [i64; 2]) -> Vec<i32> {
        let data = Tensor::from_slice(&[3], &[1i32, 2, 3]).unwrap();
        let pads = Tensor::from_slice(&[2], &pads).unwrap();
        Pad { mode }.evaluate(&[Some(&data), Some(&pads)]).unwrap()[0].slice::<i32>().unwrap().to_vec()
    }

    #[test]
    fn modes() {
        assert_eq!(run(PadMode::Constant, [1, 2]), [0, 1, 2, 3, 0, 0]);
        assert_eq!(run(PadMode::Edge, [2, 1]), [1, 1, 1, 2, 3, 3]);
        assert_eq!(run(PadMode::Reflect, [2, 3]), [3, 2, 1, 2, 3, 2, 1, 2]);
        assert_eq!(run(PadMode::Wrap, [1, 4]), [3, 1, 2, 3, 1, 2, 3, 1]);
        assert_eq!(run(PadMode::Constant, [-1, -1]), [2]);
    }

    #[test]
    fn values_axes_and_strings() {
        let data = Tensor::from_strings(&[1, 1], vec![b"x".to_vec()]).unwrap();
        let (pads, axes) = (Tensor::from_slice(&[2], &[0i64, 1]).unwrap(), Tensor::from_slice(&[1], &[-1i64]).unwrap());
        let value = Tensor::from_strings(&[], vec![b"-".to_vec()]).unwrap();
        let inputs = [Some(&data), Some(&pads), Some(&value), Some(&axes)];
        let out = Pad { mode: PadMode::Constant }.evaluate(&inputs).unwrap().remove(0);
        assert_eq!(out.strings().unwrap(), [b"x".to_vec(), b"-".to_vec()]);
        assert_eq!(out.shape(), [1, 2]);
    }

    #[test]
    fn wrong_pads() {
        let run = |pads: &[i64]| {
            let (data, pads) =
                (Tensor::zeros(DType::F32, &[3]).unwrap(), Tensor::from_slice(&[pads.len()], pads).unwrap());
            Pad { mode: PadMode::Edge }.evaluate(&[Some(&data), Some(&pads)])
        };
        assert!(run(&[-2, -2]).is_err() && run(&[1]).is_err() && run(&[i64::MAX, i64::MAX]).is_err());
    }

    #[test]
    fn sizes_grow() {
        let n = Dim::symbol("n");
        let pads = Fact::constant(Tensor::from_slice(&[2], &[1i64, 2]).unwrap());
        let data = Fact::tensor(DType::F32, [n.clone()]);
        let out = Pad { mode: PadMode::Constant }.infer(&[Some(&data), Some(&pads)]).unwrap().remove(0);
        assert_eq!(out.shape.unwrap()[..], [n + Dim::from(3)]);
    }
}
