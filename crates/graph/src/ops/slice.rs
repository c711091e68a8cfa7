use super::inputs::{self, integers, optional, required, typed};
use super::movement::{Offsets, strides, take};
use super::{Facts, TensorOp, Tensors};
use crate::{Dim, Dims, Fact, OpError};
use halimede_tensor::{Shape, Tensor};
use smallvec::smallvec;

/// A strided part (ONNX Slice). Inputs: data, starts, ends, optionally axes, optionally steps (i32 or i64).
#[derive(Debug, Clone, PartialEq)]
pub struct Slice;

impl TensorOp for Slice {
    fn infer(&self, inputs: &[Option<&Fact>]) -> Result<Facts, OpError> {
        let data = required(inputs, 0)?;
        let (starts, ends) = (required(inputs, 1)?.dims(), required(inputs, 2)?.dims());
        let Some(shape) = &data.shape else { return Ok(smallvec![typed(data.dtype, None)]) };
        let count = starts.as_ref().or(ends.as_ref()).map(Vec::len).or(required(inputs, 1)?.count());
        let axes = match (optional(inputs, 3), count) {
            (Some(axes), _) => axes.ints(),
            (None, count) => count.map(|count| (0..count as i64).collect()),
        };
        let steps = match (optional(inputs, 4), &axes) {
            (Some(steps), _) => steps.ints(),
            (None, axes) => axes.as_ref().map(|axes| vec![1; axes.len()]),
        };
        // Without the axes nothing is known but the rank.
        let Some(axes) = axes else {
            return Ok(smallvec![typed(data.dtype, Some(smallvec![Dim::unknown(); shape.len()]))]);
        };
        let mut output: Dims = shape.clone();
        let mut part = None;
        for (index, axis) in inputs::axes(&axes, shape.len())?.into_iter().enumerate() {
            let at = |list: &Option<Vec<Dim>>| list.as_ref().and_then(|list| list.get(index).cloned());
            let (start, end) = (at(&starts), at(&ends));
            let step = steps.as_ref().and_then(|steps| steps.get(index).copied());
            output[axis] = match (start, end, step) {
                (_, _, Some(0)) => return Err(OpError::invalid("a step of a Slice is 0")),
                (Some(start), Some(end), Some(step)) => {
                    if let (Some(start), Some(end), Some(size)) = (start.known(), end.known(), shape[axis].size()) {
                        let range = Part::new(start, end, step, size);
                        part = Some(range);
                        Dim::from(range.count)
                    } else {
                        symbolic_size(&start, &end, step, &shape[axis])
                    }
                }
                _ => Dim::unknown(),
            };
        }
        let elements = match (data.dims(), part) {
            (Some(dims), Some(part)) if shape.len() == 1 && axes.len() == 1 => {
                Some(part.positions().map(|position| dims[position].clone()).collect())
            }
            _ => None,
        };
        Ok(smallvec![typed(data.dtype, Some(output)).and_elements(elements)])
    }

    fn evaluate(&self, inputs: &[Option<&Tensor>]) -> Result<Tensors, OpError> {
        let data = required(inputs, 0)?;
        let (starts, ends) = (integers(required(inputs, 1)?)?, integers(required(inputs, 2)?)?);
        let axes = optional(inputs, 3).map(integers).transpose()?;
        let axes = axes.unwrap_or_else(|| (0..starts.len() as i64).collect());
        let steps = optional(inputs, 4).map(integers).transpose()?.unwrap_or_else(|| vec![1; axes.len()]);
        if ends.len() != starts.len() || axes.len() != starts.len() || steps.len() != starts.len() {
            return Err(OpError::invalid("starts, ends, axes and steps of a Slice differ in length"));
        }
        let (mut shape, mut strides, mut offset) = (Shape::from(data.shape()), strides(data.shape()), 0isize);
        let own = strides.clone();
        for (index, axis) in inputs::axes(&axes, data.rank())?.into_iter().enumerate() {
            if steps[index] == 0 {
                return Err(OpError::invalid("a step of a Slice is 0"));
            }
            let part = Part::new(starts[index], ends[index], steps[index], data.shape()[axis]);
            shape[axis] = part.count;
            strides[axis] = own[axis].saturating_mul(part.step as isize);
            offset += own[axis] * part.start as isize;
        }
        Ok(smallvec![take(data, &shape, Offsets::new(&shape, offset, &strides)?)?])
    }
}

/// The part of one axis of known size, in range.
#[derive(Debug, Clone, Copy)]
struct Part {
    start: usize,
    step: i64,
    count: usize,
}

impl Part {
    fn new(start: i64, end: i64, step: i64, size: usize) -> Part {
        let size = size as i64;
        // Going backwards, the position before the first element is -1.
        let (low, high) = if step > 0 { (0, size) } else { (-1, size - 1) };
        let clamp = |v: i64| (if v < 0 { v.saturating_add(size) } else { v }).clamp(low, high);
        let (start, end) = (clamp(start), clamp(end));
        let span = if step > 0 { end - start } else { start - end };
        let step_size = step.unsigned_abs().min(i64::MAX as u64) as i64;
        let count = if span <= 0 { 0 } else { (span - 1) / step_size + 1 };
        // A single element needs no step, which then may be larger than the tensor.
        let step = if count <= 1 { 1 } else { step };
        Part { start: start.max(0) as usize, step, count: count as usize }
    }

    fn positions(self) -> impl Iterator<Item = usize> {
        (0..self.count as i64).map(move |index| (self.start as i64 + index * self.step) as usize)
    }
}

/// The size of a part where something is a symbol. A symbolic end is taken to lie within the axis; the
/// numbers of a request are exact.
fn symbolic_size(start: &Dim, end: &Dim, step: i64, size: &Dim) -> Dim {
    if step < 0 {
        let whole = start.known().is_some_and(|s| s == -1 || s >= i32::MAX.into())
            && end.known().is_some_and(|e| e <= i32::MIN.into());
        return match whole {
            true => size.ceil_div(&Dim::from(step.saturating_neg())),
            false => Dim::unknown(),
        };
    }
    // What cannot be negative counts from the start, what must be negative from the end.
    let position = |bound: &Dim| match bound.known() {
        Some(v) if v >= i32::MAX.into() => size.clone(),
        Some(v) if v <= i32::MIN.into() => Dim::from(0),
        Some(v) if v < 0 => size.clone() + bound.clone(),
        _ if (-bound.clone()).is_non_negative() && bound.known() != Some(0) => size.clone() + bound.clone(),
        _ => bound.clone(),
    };
    let (first, last) = (position(start), position(end));
    if let (Some(first), Some(last)) = (first.known(), last.known())
        && last <= first
    {
        return Dim::from(0);
    }
    // A number may lie outside an axis of unknown size, which may also have no elements.
    let last = match (last.known(), size.known()) {
        (Some(v), None) if v > 0 => least(&last, size),
        (None, Some(_)) | (Some(_), _) | (None, None) => last,
    };
    let span = last.clone() - first;
    let span = match (span.known(), size.known()) {
        (Some(count), _) if count <= 0 => return Dim::from(0),
        // The bounds are so far apart, but both may count from the end of an axis that is shorter.
        (Some(_), None) if last.known().is_none() => {
            let from_end = (size.clone() - last.clone()).is_non_negative();
            let room = match from_end {
                true if last.is_non_negative() => last,
                true => last.maximum(&Dim::from(0)),
                false => size.clone(),
            };
            least(&span, &room)
        }
        _ => span,
    };
    span.ceil_div(&Dim::from(step))
}

/// The smaller of two, without asking for it where one is never the larger.
fn least(a: &Dim, b: &Dim) -> Dim {
    match (b.clone() - a.clone()).is_non_negative() {
        true => a.clone(),
        false => a.minimum(b),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use halimede_tensor::DType;

    fn run(size: i64, start: i64, end: i64, step: i64) -> Vec<i64> {
        let data = Tensor::from_slice(&[size as usize], &(0..size).collect::<Vec<i64>>()).unwrap();
        let t = [start, end, 0, step].map(|v| Tensor::from_slice(&[1], &[v]).unwrap());
        let inputs = [&data, &t[0], &t[1], &t[2], &t[3]].map(Some);
        let out = Slice.evaluate(&inputs).unwrap().remove(0);
        let facts: Vec<Fact> = inputs.iter().flatten().map(|&t| Fact::constant(t.clone())).collect();
        let facts: Vec<Option<&Fact>> = facts.iter().map(Some).collect();
        let fact = Slice.infer(&facts).unwrap().remove(0);
        assert_eq!(fact.known_shape().unwrap()[..], out.shape()[..]);
        assert_eq!(fact.ints().unwrap(), out.slice::<i64>().unwrap());
        out.slice::<i64>().unwrap().to_vec()
    }

    #[test]
    fn numpy_ranges() {
        assert_eq!(run(5, 1, 4, 1), [1, 2, 3]);
        assert_eq!(run(5, -2, i64::MAX, 1), [3, 4]);
        assert_eq!(run(5, -1, i64::MIN, -1), [4, 3, 2, 1, 0]);
        assert_eq!(run(5, 4, 0, -2), [4, 2]);
        assert_eq!(run(5, -1, -1, -1), []);
        assert_eq!(run(5, 0, -1, 3), [0, 3]);
        assert_eq!(run(5, 7, 9, 1), []);
        assert_eq!(run(5, 3, 1, 1), []);
        assert_eq!(run(5, 1, 9, i64::MAX), [1]);
        assert_eq!(run(5, 4, i64::MIN, i64::MIN), [4]);
        assert_eq!(run(0, 0, -1, 1), []);
    }

    #[test]
    fn several_axes() {
        let data = Tensor::from_slice(&[2, 3], &[1u8, 2, 3, 4, 5, 6]).unwrap();
        let pair = |a: i64, b: i64| Tensor::from_slice(&[2], &[a, b]).unwrap();
        let (starts, ends, axes) = (pair(0, 1), pair(2, 3), pair(-1, 0));
        let out = Slice.evaluate(&[Some(&data), Some(&starts), Some(&ends), Some(&axes)]).unwrap().remove(0);
        assert_eq!(out, Tensor::from_slice(&[1, 2], &[4u8, 5]).unwrap());
        // What an axis that stands twice would mean is nowhere said.
        let twice = pair(0, -2);
        let inputs = [&data, &starts, &ends, &twice].map(Some);
        assert!(Slice.evaluate(&inputs).unwrap_err().to_string().contains("twice"));
    }

    /// What is computed with symbols holds for every size that the symbol may have.
    #[test]
    fn symbols_hold_for_short_axes() {
        let n = Dim::symbol("n");
        for (start, end, step) in [
            (0, 1, 1),
            (-1, i64::MAX, 1),
            (-2, i64::MAX, 1),
            (-3, -1, 1),
            (-5, -1, 2),
            (0, 3, 2),
            (-1, i64::MIN, -1),
            (1, 1, 1),
            (2, 1, 1),
            (3, 3, 1),
        ] {
            let data = Fact::tensor(DType::F32, [n.clone()]);
            let facts = [start, end, 0, step].map(|v| Fact::constant(Tensor::from_slice(&[1], &[v]).unwrap()));
            let facts: Vec<Option<&Fact>> = std::iter::once(&data).chain(&facts).map(Some).collect();
            let symbolic = Slice.infer(&facts).unwrap()[0].shape.as_ref().unwrap()[0].clone();
            for size in 0..6 {
                let exact = Part::new(start, end, step, size).count;
                let made = symbolic.evaluate(&|_| Some(size as i64));
                assert_eq!(made, Dim::from(exact), "{start}:{end}:{step} of {size} is {symbolic}");
            }
        }
    }

    #[test]
    fn symbols() {
        let n = Dim::symbol("n");
        let size = |shape: &Dim, start: Dim, end: Dim, step: i64| {
            let data = Fact::tensor(DType::F32, [shape.clone()]);
            let one = |dim| Fact::tensor(DType::I64, [Dim::from(1)]).and_elements(Some(vec![dim]));
            let facts = [data, one(start), one(end), one(Dim::from(0)), one(Dim::from(step))];
            let facts: Vec<Option<&Fact>> = facts.iter().map(Some).collect();
            Slice.infer(&facts).unwrap()[0].shape.as_ref().unwrap()[0].clone()
        };
        let k = |v: i64| Dim::from(v);
        assert_eq!(size(&n, k(0), k(i64::MAX), 1), n);
        assert_eq!(size(&n, k(1), k(i64::MAX), 1), n.clone() - k(1));
        assert_eq!(size(&n, k(0), k(-1), 1), n.clone() - k(1));
        assert_eq!(size(&n, k(-1), k(i64::MAX), 1), n.minimum(&k(1)));
        assert_eq!(size(&n, k(0), k(1), 1), n.minimum(&k(1)));
        // An axis that has an element for certain.
        let more = n.clone() + k(1);
        assert_eq!(size(&more, k(-1), k(i64::MAX), 1), k(1));
        assert_eq!(size(&more, k(0), k(1), 1), k(1));
        assert_eq!(size(&n, k(-1), k(i64::MIN), -1), n);
        assert_eq!(size(&k(512), k(0), n.clone(), 1), n);
        assert_eq!(size(&n, k(0), k(5), 1), n.minimum(&k(5)));
    }
}
