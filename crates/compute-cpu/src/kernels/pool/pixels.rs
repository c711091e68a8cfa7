//! Pooling on data whose channels lie last: every vector is of neighbouring channels.

use super::covered;
use crate::isa::multiversion;
use crate::kernels::Machine;
use crate::kernels::conv::window::Window;
use crate::kernels::rows::part_mut;
use halimede_compute::{Arguments, Step};
use halimede_graph::ops::PoolKind;

pub(super) struct PixelsStep {
    pub kind: PoolKind,
    /// Border after each axis.
    pub after: [usize; 3],
    pub window: Window,
    pub machine: Machine,
}

impl Step for PixelsStep {
    fn run(&self, arguments: &Arguments<'_>) {
        let Some(input) = arguments.inputs[0] else { return };
        // SAFETY: inputs are not written during the step.
        let x = unsafe { input.slice::<f32>() };
        let window = &self.window;
        let row_len = window.out[2] * window.groups;
        self.machine.pool.run(window.batch * window.out[1], &|task| {
            // SAFETY: each part has a row of the output.
            let line = unsafe { part_mut::<f32>(arguments.outputs[0], task * row_len, row_len) };
            let (image, row) = (task / window.out[1], task % window.out[1]);
            let x = &x[image * window.image_len()..][..window.image_len()];
            pool_row(self.machine.isa, self, x, row, line);
        });
    }
}

multiversion! {
    /// One row of output pixels.
    fn pool_row(step: &PixelsStep, x: &[f32], row: usize, line: &mut [f32]) = pool
}

#[inline(always)]
fn pool(step: &PixelsStep, x: &[f32], row: usize, line: &mut [f32]) {
    let (window, channels) = (&step.window, step.window.groups);
    for (column, out) in line.chunks_exact_mut(channels.max(1)).enumerate() {
        let mut seen = 0usize;
        for tap in 0..window.kernel[1] * window.kernel[2] {
            let (tap_y, tap_x) = (tap / window.kernel[2], tap % window.kernel[2]);
            let (Some(y), Some(at)) = (window.source(1, row, tap_y), window.source(2, column, tap_x)) else { continue };
            let x = &x[(y * window.x[2] + at) * channels..][..channels];
            let pairs = out.iter_mut().zip(x);
            match step.kind {
                // The first element stands even where it is no larger than any other.
                PoolKind::Max { .. } | PoolKind::Average { .. } if seen == 0 => pairs.for_each(|(out, &x)| *out = x),
                PoolKind::Max { .. } => pairs.for_each(|(out, &x)| *out = if x > *out { x } else { *out }),
                PoolKind::Average { .. } => pairs.for_each(|(out, &x)| *out += x),
                PoolKind::Lp { p } => {
                    pairs.for_each(|(out, &x)| *out = x.abs().powi(p as i32) + if seen == 0 { 0.0 } else { *out })
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
