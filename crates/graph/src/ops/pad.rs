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
            let (before, after) = (&pads[index], &pads[axes.len() + index]);
            if let (Some(size), Some(before), Some(after)) = (shape[axis].size(), before.known(), after.known()) {
                output[axis] = Dim::from(self.length(size, before, after)?);
            } else {
                output[axis] = output[axis].clone() + before.clone() + after.clone();
            }
        }
        Ok(smallvec![typed(data.dtype, Some(output))])
    }

    fn evaluate(&self, inputs: &[Option<&Tensor>]) -> Result<Tensors, OpError> {
        let data = required(inputs, 0)?;
        let pads = integers(required(inputs, 1)?)?;
        let axes = optional(inputs, 3).map(integers).transpose()?;
        let axes = resolve_axes(&axes.unwrap_or_else(|| (0..data.rank() as i64).collect()), pads.len(), data.rank())?;
        let mut shape = Shape::from(data.shape());
        for (index, &axis) in axes.iter().enumerate() {
            shape[axis] = self.length(data.shape()[axis], pads[index], pads[axes.len() + index])?;
        }
        let fill = optional(inputs, 2).filter(|fill| !fill.is_empty());
        // Axes beside one of size 0 may be longer than there is memory for.
        if shape.contains(&0) {
            return Ok(smallvec![take_or(data, fill, &shape, std::iter::empty())?]);
        }
        let strides = strides(data.shape());
        // Per axis of the output, where each index lies in the data.
        let mut sources: Vec<Vec<Option<usize>>> =
            data.shape().iter().map(|&size| (0..size).map(Some).collect()).collect();
        for (index, &axis) in axes.iter().enumerate() {
            sources[axis] = self.sources(data.shape()[axis], pads[index], pads[axes.len() + index])?;
        }
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
        Ok(smallvec![take_or(data, fill, &shape, positions)?])
    }
}

impl Pad {
    /// The size of an axis with its border.
    fn length(&self, size: usize, before: i64, after: i64) -> Result<usize, OpError> {
        // So that places in the border can be counted, too.
        const MOST: u64 = 1 << 60;
        let wrong = |what: &str| OpError::invalid(format!("pads {before} and {after} {what} an axis of size {size}"));
        if before.unsigned_abs() > MOST || after.unsigned_abs() > MOST {
            return Err(wrong("are too large for"));
        }
        let padded = (size as i64).saturating_add(before).saturating_add(after);
        let length = usize::try_from(padded).map_err(|_| wrong("remove more than there is of"))?;
        match size == 0 && length > 0 && self.mode != PadMode::Constant {
            true => Err(wrong("make a border from elements of")),
            false => Ok(length),
        }
    }

    fn sources(&self, size: usize, before: i64, after: i64) -> Result<Vec<Option<usize>>, OpError> {
        let length = self.length(size, before, after)?;
        // Refused here where there is no room for one such axis.
        Tensor::zeros(DType::Complex128, &[length])?;
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
    inputs::axes(axes, rank)
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
        assert!(run(&[i64::MIN, i64::MAX]).is_err() && run(&[-i64::MAX, i64::MAX]).is_err());
    }

    #[test]
    fn axes_without_elements() {
        let run = |mode, shape: &[usize], pads: &[i64], axes: &[i64]| {
            let data = Tensor::zeros(DType::String, shape).unwrap();
            let [pads, axes] = [pads, axes].map(|list| Tensor::from_slice(&[list.len()], list).unwrap());
            let inputs = [Some(&data), Some(&pads), None, Some(&axes)];
            let facts: Vec<Option<Fact>> = inputs.iter().map(|input| input.cloned().map(Fact::constant)).collect();
            let facts: Vec<Option<&Fact>> = facts.iter().map(Option::as_ref).collect();
            let (inferred, made) = (Pad { mode }.infer(&facts), Pad { mode }.evaluate(&inputs));
            assert_eq!(inferred.is_ok(), made.is_ok(), "{shape:?} {pads:?}");
            made.map(|made| made[0].shape().to_vec())
        };
        for mode in [PadMode::Edge, PadMode::Reflect, PadMode::Wrap] {
            assert!(run(mode, &[0, 2], &[1, 0], &[0]).is_err());
            assert_eq!(run(mode, &[0, 2], &[1, 0], &[1]).unwrap(), [0, 3]);
        }
        assert_eq!(run(PadMode::Constant, &[0, 2], &[1, 0], &[0]).unwrap(), [1, 2]);
        assert_eq!(run(PadMode::Constant, &[1 << 40, 0], &[2, 0], &[0]).unwrap(), [(1 << 40) + 2, 0]);
        assert!(run(PadMode::Constant, &[2, 2], &[1, 1, 0, 0], &[0, -2]).unwrap_err().to_string().contains("twice"));
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
