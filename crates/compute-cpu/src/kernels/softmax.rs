//! Softmax and its logarithm along one axis, in f32.

use super::Machine;
use super::rows::{Rows, part_mut};
use crate::isa::multiversion;
use crate::map::{exp, exp_down};
use halimede_compute::{Arguments, Kernel, Prepared, Step, TensorDesc};
use halimede_graph::OpError;
use halimede_graph::ops::Softmax;
use halimede_tensor::DType;
use smallvec::SmallVec;

/// Elements below which one thread does it all.
const PARALLEL_ELEMENTS: usize = 16 * 1024;

pub(super) struct SoftmaxKernel {
    pub op: Softmax,
    pub machine: Machine,
}

impl Kernel for SoftmaxKernel {
    fn name(&self) -> &str {
        "softmax f32"
    }

    fn prepare(&self, _inputs: &[Option<TensorDesc>], outputs: &[TensorDesc]) -> Result<Prepared, OpError> {
        let output = &outputs[0];
        if output.dtype != DType::F32 {
            return Err(OpError::unsupported(format!("softmax of {}", output.dtype)));
        }
        let rows = Rows::along(&output.shape, self.op.axis);
        let step = SoftmaxStep { rows, log: self.op.log, machine: self.machine.clone() };
        Ok(Prepared { step: Box::new(step), workspace: 0 })
    }

    fn in_place(&self) -> SmallVec<[(usize, usize); 2]> {
        smallvec::smallvec![(0, 0)]
    }
}

struct SoftmaxStep {
    rows: Rows,
    log: bool,
    machine: Machine,
}

impl Step for SoftmaxStep {
    fn run(&self, arguments: &Arguments<'_>) {
        let Rows { outer, length, inner } = self.rows;
        let Some(input) = arguments.inputs[0] else { return };
        let count = outer * length * inner;
        let parts = if count < PARALLEL_ELEMENTS { 1 } else { (self.machine.pool.threads() * 4).min(outer.max(1)) };
        self.machine.pool.run(parts, &|part| {
            let (first, last) = (part * outer / parts, (part + 1) * outer / parts);
            let size = (last - first) * length * inner;
            // SAFETY: parts do not overlap; where input and output are the same memory the copy does
            // nothing, else the input is not written during the step.
            let block = unsafe {
                let block = part_mut::<f32>(arguments.outputs[0], first * length * inner, size);
                let source = input.as_ptr().cast::<f32>().add(first * length * inner);
                std::ptr::copy(source, block.as_mut_ptr(), size);
                block
            };
            let chunk = (length * inner).max(1);
            for slab in block.chunks_exact_mut(chunk) {
                match inner {
                    1 => softmax_row(self.machine.isa, slab, self.log),
                    _ => softmax_columns(self.machine.isa, slab, inner, self.log),
                }
            }
        });
    }
}

multiversion! {
    /// One contiguous row in place.
    pub(super) fn softmax_row(row: &mut [f32], log: bool) = row_body
}

multiversion! {
    /// Every column of a `[length, inner]` slab in place.
    fn softmax_columns(slab: &mut [f32], inner: usize, log: bool) = columns_body
}

/// The larger number; NaN where either is.
#[inline(always)]
pub(super) fn larger(a: f32, b: f32) -> f32 {
    if a > b || a.is_nan() { a } else { b }
}

/// The smaller number; NaN where either is.
#[inline(always)]
pub(super) fn smaller(a: f32, b: f32) -> f32 {
    if a < b || a.is_nan() { a } else { b }
}

/// The largest element; NaN where one is NaN.
#[inline(always)]
pub(super) fn max_of(row: &[f32]) -> f32 {
    extreme_of(row, f32::NEG_INFINITY, larger)
}

/// The smallest element; NaN where one is NaN.
#[inline(always)]
pub(super) fn min_of(row: &[f32]) -> f32 {
    extreme_of(row, f32::INFINITY, smaller)
}

/// Sixteen running extremes, so that the loop vectorises.
#[inline(always)]
fn extreme_of(row: &[f32], start: f32, better: impl Fn(f32, f32) -> f32) -> f32 {
    let mut lanes = [start; 16];
    let chunks = row.chunks_exact(16);
    let rest = chunks.remainder();
    for chunk in chunks {
        for (lane, &element) in lanes.iter_mut().zip(chunk) {
            *lane = better(*lane, element);
        }
    }
    rest.iter().chain(&lanes).fold(start, |a, &b| better(a, b))
}

/// Replaces each element by `exp(element - max)`, where none is larger than that, and gives the sum. What is less than some 2^-125 of the
/// largest becomes 0.
#[inline(always)]
pub(super) fn exp_and_sum(row: &mut [f32], max: f32) -> f32 {
    let mut lanes = [0f32; 16];
    let mut chunks = row.chunks_exact_mut(16);
    for chunk in &mut chunks {
        for (lane, element) in lanes.iter_mut().zip(chunk) {
            *element = exp_down(*element - max);
            *lane += *element;
        }
    }
    let mut sum: f32 = lanes.iter().sum();
    for element in chunks.into_remainder() {
        *element = exp_down(*element - max);
        sum += *element;
    }
    sum
}

#[inline(always)]
fn row_body(row: &mut [f32], log: bool) {
    let max = max_of(row);
    if log {
        let mut sum = 0f32;
        for &element in row.iter() {
            sum += exp(element - max);
        }
        // Not their sum: beside a large number the logarithm would be lost.
        let rest = sum.ln();
        row.iter_mut().for_each(|element| *element = (*element - max) - rest);
    } else {
        let factor = 1.0 / exp_and_sum(row, max);
        row.iter_mut().for_each(|element| *element *= factor);
    }
}

#[inline(always)]
fn columns_body(slab: &mut [f32], inner: usize, log: bool) {
    // Sixteen columns at a time keep their maxima and sums in registers.
    for first in (0..inner).step_by(16) {
        let width = 16.min(inner - first);
        let (mut max, mut sum) = ([f32::NEG_INFINITY; 16], [0f32; 16]);
        for line in slab.chunks_exact(inner) {
            for (max, &element) in max.iter_mut().zip(&line[first..first + width]) {
                *max = if element > *max || element.is_nan() { element } else { *max };
            }
        }
        for line in slab.chunks_exact_mut(inner) {
            let line = &mut line[first..first + width];
            for ((element, &max), sum) in line.iter_mut().zip(&max).zip(&mut sum) {
                let value = exp_down(*element - max);
                *sum += value;
                if !log {
                    *element = value;
                }
            }
        }
        let mut change = [0f32; 16];
        for (change, &sum) in change.iter_mut().zip(&sum) {
            *change = if log { sum.ln() } else { 1.0 / sum };
        }
        for line in slab.chunks_exact_mut(inner) {
            for ((element, &change), &max) in line[first..first + width].iter_mut().zip(&change).zip(&max) {
                *element = if log { (*element - max) - change } else { *element * change };
            }
        }
    }
}
