//! Pooling on data whose channels lie last: every vector is of neighbouring channels.

use super::covered;
use crate::isa::multiversion;
use crate::kernels::Machine;
use crate::kernels::conv::window::Window;
use crate::kernels::rows::part_mut;
use crate::real::Real;
use half::bf16;
use halimede_compute::{Arguments, Step};
use halimede_graph::ops::PoolKind;
use halimede_tensor::{DType, Element, View};

pub(super) struct PixelsStep {
    pub dtype: DType,
    pub kind: PoolKind,
    /// Border after each axis.
    pub after: [usize; 3],
    pub window: Window,
    pub machine: Machine,
}

impl PixelsStep {
    fn row_len(&self) -> usize {
        self.window.out[2] * self.window.groups
    }

    /// Bytes of a row in f32 for each task that may run at once, where rows lie in memory otherwise.
    pub fn workspace(&self) -> usize {
        let row = (self.row_len() * size_of::<f32>()).next_multiple_of(64);
        if self.dtype == DType::Bf16 { row * self.machine.pool.threads() } else { 0 }
    }

    fn x<'a, T: Element>(&self, arguments: &Arguments<'a>, task: usize) -> (&'a [T], usize) {
        let window = &self.window;
        // SAFETY: inputs are not written during the step.
        let x = unsafe { arguments.inputs[0].unwrap_or(View::empty()).slice::<T>() };
        let (image, row) = (task / window.out[1], task % window.out[1]);
        (&x[image * window.image_len()..][..window.image_len()], row)
    }
}

impl Step for PixelsStep {
    fn run(&self, arguments: &Arguments<'_>) {
        let (isa, row_len) = (self.machine.isa, self.row_len());
        let tasks = self.window.batch * self.window.out[1];
        if self.dtype == DType::F32 {
            return self.machine.pool.run(tasks, &|task| {
                // SAFETY: each part has a row of the output.
                let line = unsafe { part_mut::<f32>(arguments.outputs[0], task * row_len, row_len) };
                let (x, row) = self.x::<f32>(arguments, task);
                pool_row(isa, self, x, row, line);
            });
        }
        if self.dtype != DType::Bf16 {
            return self.machine.pool.run(tasks, &|task| {
                // The bits of bytes with a sign, the uppermost of them turned round, are in the order of those without.
                let sign = if self.dtype == DType::I8 { 0x80 } else { 0 };
                // SAFETY: each part has a row of the output.
                let line = unsafe { part_mut::<u8>(arguments.outputs[0], task * row_len, row_len) };
                let (x, row) = self.x::<u8>(arguments, task);
                max_bytes(isa, self, x, row, sign, line);
            });
        }
        assert!(arguments.workspace.len() >= self.workspace());
        let threads = self.machine.pool.threads().min(tasks);
        self.machine.pool.run(threads, &|thread| {
            let line_bytes = (row_len * size_of::<f32>()).next_multiple_of(64);
            for task in tasks * thread / threads..tasks * (thread + 1) / threads {
                // SAFETY: each thread has a line of the workspace, each task a row of the output.
                let (line, out) = unsafe {
                    let line = arguments.workspace.part(thread * line_bytes, row_len * size_of::<f32>()).slice_mut();
                    (line, part_mut::<bf16>(arguments.outputs[0], task * row_len, row_len))
                };
                let (x, row) = self.x::<bf16>(arguments, task);
                pool_narrow_row(isa, self, x, row, line);
                bf16::narrow_all(isa, line, out);
            }
        });
    }
}

multiversion! {
    /// One row of output pixels.
    fn pool_row(step: &PixelsStep, x: &[f32], row: usize, line: &mut [f32]) = pool::<f32>
}

multiversion! {
    /// The same of data in bf16.
    fn pool_narrow_row(step: &PixelsStep, x: &[bf16], row: usize, line: &mut [f32]) = pool::<bf16>
}

multiversion! {
    /// The same of bytes, of which the largest is wanted after `sign` was turned round.
    fn max_bytes(step: &PixelsStep, x: &[u8], row: usize, sign: u8, line: &mut [u8]) = max_of_bytes
}

#[inline(always)]
fn max_of_bytes(step: &PixelsStep, x: &[u8], row: usize, sign: u8, line: &mut [u8]) {
    let (window, channels) = (&step.window, step.window.groups);
    for (column, out) in line.chunks_exact_mut(channels.max(1)).enumerate() {
        out.fill(0);
        for tap in 0..window.kernel[1] * window.kernel[2] {
            let (tap_y, tap_x) = (tap / window.kernel[2], tap % window.kernel[2]);
            let (Some(y), Some(at)) = (window.source(1, row, tap_y), window.source(2, column, tap_x)) else { continue };
            let x = &x[(y * window.x[2] + at) * channels..][..channels];
            for (out, &x) in out.iter_mut().zip(x) {
                *out = (*out).max(x ^ sign);
            }
        }
        for out in out {
            *out ^= sign;
        }
    }
}

#[inline(always)]
fn pool<T: Real>(step: &PixelsStep, x: &[T], row: usize, line: &mut [f32]) {
    let (window, channels) = (&step.window, step.window.groups);
    for (column, out) in line.chunks_exact_mut(channels.max(1)).enumerate() {
        let mut seen = 0usize;
        for tap in 0..window.kernel[1] * window.kernel[2] {
            let (tap_y, tap_x) = (tap / window.kernel[2], tap % window.kernel[2]);
            let (Some(y), Some(at)) = (window.source(1, row, tap_y), window.source(2, column, tap_x)) else { continue };
            let x = &x[(y * window.x[2] + at) * channels..][..channels];
            let pairs = out.iter_mut().zip(x.iter().map(|x| x.widen()));
            match step.kind {
                // The first element stands even where it is no larger than any other.
                PoolKind::Max { .. } | PoolKind::Average { .. } if seen == 0 => pairs.for_each(|(out, x)| *out = x),
                PoolKind::Max { .. } => pairs.for_each(|(out, x)| *out = if x > *out { x } else { *out }),
                PoolKind::Average { .. } => pairs.for_each(|(out, x)| *out += x),
                PoolKind::Lp { p } => {
                    pairs.for_each(|(out, x)| *out = x.abs().powi(p as i32) + if seen == 0 { 0.0 } else { *out })
                }
            }
            seen += 1;
        }
        match step.kind {
            PoolKind::Max { .. } if seen > 0 => {}
            PoolKind::Max { .. } => out.fill(f32::NEG_INFINITY),
            _ if seen == 0 => out.fill(0.0),
            PoolKind::Average { count_include_pad } => {
                let count = if count_include_pad { covered(window, step.after, [0, row, column]) } else { seen };
                let factor = 1.0 / count.max(1) as f32;
                out.iter_mut().for_each(|out| *out *= factor);
            }
            PoolKind::Lp { p } => out.iter_mut().for_each(|out| *out = out.powf(1.0 / p as f32)),
        }
    }
}
