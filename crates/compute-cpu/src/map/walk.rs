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
                let mut done = 0;
                while done < count {
                    let position = start + done;
                    let (mut row, column) = (position / inner, position % inner);
                    let run = (inner - column).min(count - done);
                    let mut offset = column * inner_stride;
                    for (&size, &stride) in outer.iter().zip(strides).rev() {
                        offset += row % size * stride;
                        row /= size;
                    }
                    // SAFETY: see above.
                    unsafe {
                        match inner_stride {
                            0 => splat(isa, view, dtype, offset, run, at + done, register),
                            _ => load(isa, view, dtype, offset, run, at + done, register),
                        }
                    }
                    done += run;
                }
            }
        }
    }
}
