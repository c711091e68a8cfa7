//! Transposed convolutions on data whose channels come first: every input element adds its window to the output.
//!
//! What the elements of a block of pixels add is a product of the weights, `[channels x taps, inputs]`, by the block,
//! `[inputs, pixels]`. Each of its rows is for one tap of one channel, and goes to the pixels where that tap falls.
//!
//! ```text
//! for each image, group, and few output channels      a task
//!     begin with the bias
//!     for each block of pixels of the data
//!         sums = weights · pixels                     micro-kernels; stays in the second-level cache
//!         for each row of the sums                    a channel and a tap
//!             add it to the channel, where it falls
//!     epilogue
//! ```

use super::window::Window;
use crate::gemm::{self, Copies, KC, Left, Micro, Target};
use crate::isa::multiversion;
use crate::kernels::Machine;
use crate::kernels::epilogue::Epilogue;
use crate::kernels::rows::{part_mut, registers_of};
use crate::map::{BLOCK, Register};
use crate::pool::own_bytes;
use halimede_compute::{Arguments, Step};
use halimede_tensor::View;

/// Pixels of a block, about: a row of its sums is 1 KiB.
const PIXELS: usize = 256;
/// Rows of the sums of a block, at most, if one channel has not more: 192 KiB of them.
const ROWS: usize = 192;

pub(super) struct TransposedStep {
    window: Window,
    has_bias: bool,
    epilogue: Option<Epilogue>,
    machine: Machine,
    micro: Micro,
    /// Output channels of a task.
    channels: usize,
    /// Panels of a block.
    panels: usize,
}

impl TransposedStep {
    pub fn new(
        window: Window,
        has_bias: bool,
        epilogue: Option<Epilogue>,
        machine: Machine,
        micro: Micro,
    ) -> TransposedStep {
        let most = (ROWS / window.taps().max(1)).clamp(1, window.rows.max(1));
        // Each thread has some of the channels.
        let tasks = (window.batch * window.groups).max(1);
        let parts = window.rows.div_ceil(most).max(machine.pool.threads().div_ceil(tasks)).min(window.rows.max(1));
        let channels = window.rows.div_ceil(parts).max(1);
        let panels = (PIXELS / micro.nr).clamp(1, window.plane_len().div_ceil(micro.nr).max(1));
        TransposedStep { window, has_bias, epilogue, machine, micro, channels, panels }
    }

    fn registers_bytes(&self) -> usize {
        self.epilogue.as_ref().map_or(0, |epilogue| epilogue.registers() * size_of::<Register>())
    }

    fn sums_len(&self) -> usize {
        self.channels * self.window.taps() * self.panels * self.micro.nr
    }

    fn block_len(&self) -> usize {
        self.panels * KC.min(self.window.inputs) * self.micro.nr
    }

    /// Per thread: registers of the epilogue, sums, a block of the data, scratch of the driver.
    fn thread_bytes(&self) -> usize {
        let floats = self.sums_len() + self.block_len() + gemm::scratch_len(&self.micro);
        own_bytes(self.registers_bytes() + floats * size_of::<f32>())
    }

    pub fn workspace(&self) -> usize {
        self.thread_bytes() * self.machine.pool.threads()
    }
}

impl Step for TransposedStep {
    fn run(&self, arguments: &Arguments<'_>) {
        let window = &self.window;
        let view = |index: usize| arguments.inputs.get(index).copied().flatten().unwrap_or(View::empty());
        // SAFETY: inputs are not written during the step.
        let (x, w, bias) = unsafe {
            let bias: &[f32] = if self.has_bias { view(2).slice() } else { &[] };
            (view(0).slice::<f32>(), view(1).slice::<f32>(), bias)
        };
        let output = arguments.outputs[0];
        let (pixels, all) = (window.pixels(), window.groups * window.rows);
        assert!(window.batch * all * pixels * size_of::<f32>() <= output.len());
        assert!(w.len() >= window.groups * window.inputs * window.rows * window.taps());
        let parts = window.rows.div_ceil(self.channels);
        let tasks = window.batch * window.groups * parts;
        let threads = self.machine.pool.threads().min(tasks);
        assert!(arguments.workspace.len() >= threads * self.thread_bytes());
        self.machine.pool.run_tasks(threads, tasks, &|thread, task| {
            let (rest, part) = (task / parts, task % parts);
            let (image, group) = (rest / window.groups, rest % window.groups);
            let rows = part * self.channels..window.rows.min((part + 1) * self.channels);
            let first = group * window.rows + rows.start;
            let start = (image * all + first) * pixels;
            // SAFETY: each task has planes of the output and each thread its part of the workspace.
            let (planes, registers, scratch) = unsafe {
                let own = arguments.workspace.part(thread * self.thread_bytes(), self.thread_bytes());
                let registers = registers_of(own, 0, self.registers_bytes());
                let floats = self.registers_bytes() / size_of::<f32>();
                let len = self.thread_bytes() / size_of::<f32>() - floats;
                (part_mut::<f32>(output, start, rows.len() * pixels), registers, part_mut::<f32>(own, floats, len))
            };
            for (row, plane) in planes.chunks_exact_mut(pixels.max(1)).enumerate() {
                plane.fill(bias.get(first + row).copied().unwrap_or(0.0));
            }
            let image = &x[image * window.image_len() + group * window.inputs * window.plane_len()..];
            // Without inputs there are none.
            let weights =
                w.get((group * window.inputs * window.rows + rows.start) * window.taps()..).unwrap_or_default();
            self.add(&image[..window.inputs * window.plane_len()], weights, planes, scratch);
            if let Some(epilogue) = &self.epilogue {
                let extra = arguments.inputs.get(3..).unwrap_or_default();
                for (index, block) in planes.chunks_mut(BLOCK).enumerate() {
                    let (place, columns) = ((start + index * BLOCK, 0), block.len());
                    epilogue.apply(extra, block, columns, (1, columns), place, registers);
                }
            }
        });
    }
}

impl TransposedStep {
    /// Adds what the inputs of a group, one plane after the other, give to neighbouring output channels. Their weights are those of the first
    /// input first, `rows x taps` behind which the next one's begin.
    fn add(&self, x: &[f32], weights: &[f32], planes: &mut [f32], scratch: &mut [f32]) {
        let (window, micro) = (&self.window, &self.micro);
        let (pixels, seen, taps, depth) = (window.pixels(), window.plane_len(), window.taps(), window.inputs);
        let (sums, rest) = scratch.split_at_mut(self.sums_len());
        let (block, scratch) = rest.split_at_mut(self.block_len());
        let (pitch, of_panel) = (self.panels * micro.nr, KC.min(depth) * micro.nr);
        let rows = planes.len() / pixels.max(1) * taps;
        if rows == 0 || seen == 0 || depth == 0 {
            return;
        }
        // Neither weights nor pixels have zeros between them that would be multiplied.
        let left =
            Left::Strided { start: weights.as_ptr(), row: 1, column: window.rows * taps, copies: Copies::WherePays };
        for p0 in (0..seen.div_ceil(micro.nr)).step_by(self.panels) {
            let p1 = seen.div_ceil(micro.nr).min(p0 + self.panels);
            let first = p0 * micro.nr;
            let target = Target { start: sums.as_mut_ptr().wrapping_sub(first), row: pitch };
            let panels = block.as_mut_ptr();
            // SAFETY: the rows are those of channels of this group, of which each input has all; the sums have room for them, `pitch` apart,
            // and the block for every panel; panels are packed before they are multiplied.
            unsafe {
                gemm::multiply(
                    micro,
                    left,
                    (0, rows),
                    (p0, p1),
                    (seen, depth),
                    &|p, _| panels.wrapping_add((p - p0) * of_panel),
                    Some(&mut |from| {
                        let length = KC.min(depth - from);
                        for p in p0..p1 {
                            let panel =
                                std::slice::from_raw_parts_mut(panels.add((p - p0) * of_panel), length * micro.nr);
                            let start = x.as_ptr().add(from * seen);
                            gemm::pack_panel(start, (seen, 1), p * micro.nr, seen, length, micro.nr, panel);
                        }
                    }),
                    target,
                    scratch,
                    None,
                );
            }
            let count = seen.min(p1 * micro.nr) - first;
            for (row, sums) in sums.chunks_exact(pitch).enumerate().take(rows) {
                let plane = &mut planes[row / taps * pixels..][..pixels];
                spread(self.machine.isa, window, &sums[..count], (first, row % taps), plane);
            }
        }
    }
}

multiversion! {
    /// Adds what the pixels of the data from the one given on have made by one tap to a plane of the output.
    fn spread(window: &Window, sums: &[f32], place: (usize, usize), plane: &mut [f32]) = spread_each
}

#[inline(always)]
fn spread_each(window: &Window, sums: &[f32], (first, tap): (usize, usize), plane: &mut [f32]) {
    let [_, height, width] = window.x;
    let ([tap_z, tap_y, tap_x], stride) = (window.tap(tap), window.stride[2]);
    let shift = (tap_x * window.dilation[2]) as isize - window.before[2];
    let mut done = 0;
    while done < sums.len() {
        let (line, column) = ((first + done) / width, (first + done) % width);
        let run = (width - column).min(sums.len() - done);
        let own = &sums[done..done + run];
        done += run;
        let (z, y) = (target(window, 0, line / height, tap_z), target(window, 1, line % height, tap_y));
        let (Some(z), Some(y)) = (z, y) else { continue };
        let line = &mut plane[(z * window.out[1] + y) * window.out[2]..][..window.out[2]];
        // Those that fall inside of it.
        let place = (column * stride) as isize + shift;
        let skipped = (-place).max(0).unsigned_abs().div_ceil(stride);
        let from = place + (skipped * stride) as isize;
        let Some(line) = usize::try_from(from).ok().and_then(|from| line.get_mut(from..)) else { continue };
        let own = own.get(skipped..).unwrap_or_default();
        if own.is_empty() || line.is_empty() {
            continue;
        }
        // Counted: what iterators hand on may be compiled apart (`docs/benchmarks/gaps-z.md#closures-over-vectors`).
        let count = own.len().min(line.len().div_ceil(stride));
        let own = &own[..count];
        match stride {
            1 => {
                let line = &mut line[..count];
                for index in 0..count {
                    line[index] += own[index];
                }
            }
            2 => {
                let line = &mut line[..2 * count - 1];
                for index in 0..count {
                    line[2 * index] += own[index];
                }
            }
            _ => {
                for index in 0..count {
                    line[index * stride] += own[index];
                }
            }
        }
    }
}

/// The output coordinate of a tap of an input coordinate; `None` where it is cut off.
fn target(window: &Window, axis: usize, x: usize, tap: usize) -> Option<usize> {
    let position = (x * window.stride[axis] + tap * window.dilation[axis]) as isize - window.before[axis];
    usize::try_from(position).ok().filter(|&position| position < window.out[axis])
}
