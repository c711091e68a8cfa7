//! How an input that broadcasts is walked in the order of the output.

use super::{Register, load, splat};
use crate::Isa;
use halimede_graph::OpError;
use halimede_tensor::{DType, View};
use smallvec::SmallVec;

/// How an input is walked in the order of the output.
pub(crate) enum Walk {
    /// Element by element: the input has the output's elements.
    Same,
    /// One element for all.
    Scalar,
    /// Runs of `inner` output elements, each contiguous in the input or one element repeated.
    Strided {
        /// Output dimensions but the innermost, outermost first.
        outer: SmallVec<[usize; 6]>,
        /// Input stride of each, in elements; 0 where it broadcasts.
        strides: SmallVec<[usize; 6]>,
        inner: usize,
        inner_stride: usize,
    },
}

impl Walk {
    /// How `input` broadcasts to `output`.
    pub fn new(input: &[usize], output: &[usize]) -> Result<Walk, OpError> {
        if input.iter().all(|&size| size == 1) {
            return Ok(Walk::Scalar);
        }
        if input == output {
            return Ok(Walk::Same);
        }
        if input.len() > output.len() {
            return Err(OpError::invalid(format!("shape {input:?} does not broadcast to {output:?}")));
        }
        let lead = output.len() - input.len();
        let own = halimede_tensor::strides(input);
        // Neighbouring axes that the input walks as one are merged.
        let mut dims: SmallVec<[(usize, usize); 6]> = SmallVec::new();
        for (axis, &size) in output.iter().enumerate() {
            let stride = match axis.checked_sub(lead) {
                Some(i) if input[i] == size => own[i],
                Some(i) if input[i] != 1 => {
                    return Err(OpError::invalid(format!("shape {input:?} does not broadcast to {output:?}")));
                }
                _ => 0,
            };
            if size == 1 {
                continue;
            }
            match dims.last_mut() {
                Some((last, last_stride)) if *last_stride == stride * size => {
                    *last *= size;
                    *last_stride = stride;
                }
                _ => dims.push((size, stride)),
            }
        }
        let (inner, inner_stride) = dims.pop().unwrap_or((1, 1));
        if dims.is_empty() && inner_stride == 1 {
            return Ok(Walk::Same);
        }
        let (outer, strides) = dims.into_iter().unzip();
        Ok(Walk::Strided { outer, strides, inner, inner_stride })
    }

    /// Whether the input holds one number for each of the output's `columns`, the same for every row.
    pub fn is_a_row_of(&self, columns: usize) -> bool {
        match self {
            Walk::Strided { strides, inner, inner_stride: 1, .. } => {
                *inner == columns && strides.iter().all(|&stride| stride == 0)
            }
            _ => false,
        }
    }

    /// Reads the elements that belong to the output's `start..start + count` into a register from `at` on.
    pub fn load(
        &self,
        isa: Isa,
        (view, dtype): (View<'_>, DType),
        start: usize,
        count: usize,
        at: usize,
        register: &mut Register,
    ) {
        // For all three: inputs are not written during the step, but for an in-place output, whose block
        // is stored after its loads.
        match self {
            // SAFETY: see above.
            Walk::Same => unsafe { load(isa, view, dtype, start, count, at, register) },
            // SAFETY: see above.
            Walk::Scalar => unsafe { splat(isa, view, dtype, 0, count, at, register) },
            Walk::Strided { outer, strides, inner, inner_stride } => {
                let (mut done, mut row, mut column) = (0, start / inner, start % inner);
                while done < count {
                    let run = (inner - column).min(count - done);
                    let (mut offset, mut rest) = (column * inner_stride, row);
                    for (&size, &stride) in outer.iter().zip(strides).skip(1).rev() {
                        offset += rest % size * stride;
                        rest /= size;
                    }
                    // What is left lies below the outermost dimension: mostly it is the only one, and nothing is divided.
                    offset += rest * strides.first().copied().unwrap_or(0);
                    // SAFETY: see above.
                    unsafe {
                        match inner_stride {
                            0 => splat(isa, view, dtype, offset, run, at + done, register),
                            _ => load(isa, view, dtype, offset, run, at + done, register),
                        }
                    }
                    done += run;
                    (row, column) = (row + 1, 0);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::map::BLOCK;
    use halimede_tensor::Tensor;

    /// The place in the input of each element of the output, by the definition.
    fn places(input: &[usize], output: &[usize]) -> Vec<usize> {
        let (lead, own) = (output.len() - input.len(), halimede_tensor::strides(input));
        let count: usize = output.iter().product();
        let place = |mut flat: usize| {
            let mut place = 0;
            for axis in (0..output.len()).rev() {
                let index = flat % output[axis];
                flat /= output[axis];
                if axis >= lead && input[axis - lead] > 1 {
                    place += index * own[axis - lead];
                }
            }
            place
        };
        (0..count).map(place).collect()
    }

    #[test]
    fn inputs_are_read_as_they_broadcast() {
        let isa = Isa::detect();
        for (input, output) in [
            (vec![7, 1], vec![7, 20]),
            (vec![20], vec![7, 20]),
            (vec![1, 7, 1], vec![3, 7, 20]),
            (vec![3, 1, 5], vec![3, 7, 5]),
            (vec![2, 1, 3, 1], vec![2, 4, 3, 6]),
            (vec![4, 1, 1], vec![4, 9, 11]),
            (vec![1], vec![300]),
            (vec![31, 10], vec![31, 10]),
        ] {
            let (walk, places) = (Walk::new(&input, &output).unwrap(), places(&input, &output));
            let len: usize = input.iter().product();
            let floats: Vec<f32> = (0..len).map(|x| x as f32).collect();
            let integers: Vec<i64> = (0..len as i64).collect();
            let floats = Tensor::from_slice(&input, &floats).unwrap();
            let integers = Tensor::from_slice(&input, &integers).unwrap();
            for (tensor, is_float) in [(floats, true), (integers, false)] {
                let view = tensor.view().unwrap();
                for start in (0..places.len()).step_by(37) {
                    let (count, at) = (BLOCK.min(places.len() - start).min(200), 56);
                    let mut register: Register = bytemuck::Zeroable::zeroed();
                    walk.load(isa, (view, tensor.dtype()), start, count, at, &mut register);
                    for (index, &place) in places[start..start + count].iter().enumerate() {
                        let found = match is_float {
                            true => register.f32()[at + index] as usize,
                            false => register.i64()[at + index] as usize,
                        };
                        assert_eq!(found, place, "{input:?} to {output:?}, element {}", start + index);
                    }
                }
            }
        }
    }
}
