//! Transposed convolutions: every input element adds its window to the output.

use super::window::Window;
use crate::isa::multiversion;
use crate::kernels::Machine;
use crate::kernels::epilogue::Epilogue;
use crate::kernels::rows::{part_mut, registers_of};
use crate::map::{BLOCK, Register};
use crate::pool::own_bytes;
use halimede_compute::{Arguments, Step};
use halimede_tensor::View;

pub(super) struct TransposedStep {
    pub window: Window,
    pub has_bias: bool,
    pub epilogue: Option<Epilogue>,
    pub machine: Machine,
}

impl TransposedStep {
    fn thread_bytes(&self) -> usize {
        own_bytes(self.epilogue.as_ref().map_or(0, |epilogue| epilogue.registers() * size_of::<Register>()))
    }

    pub fn workspace(&self) -> usize {
        self.thread_bytes() * self.machine.pool.threads()
    }
}

impl Step for TransposedStep {
    fn run(&self, arguments: &Arguments<'_>) {
        let window = &self.window;
        let channels = window.groups * window.rows;
        let view = |index: usize| arguments.inputs.get(index).copied().flatten().unwrap_or(View::empty());
        // SAFETY: inputs are not written during the step.
        let (x, w, bias) = unsafe {
            let bias: &[f32] = if self.has_bias { view(2).slice() } else { &[] };
            (view(0).slice::<f32>(), view(1).slice::<f32>(), bias)
        };
        let output = arguments.outputs[0];
        let pixels = window.pixels();
        assert!(window.batch * channels * pixels * size_of::<f32>() <= output.len());
        let tasks = window.batch * channels;
        let threads = self.machine.pool.threads().min(tasks);
        assert!(arguments.workspace.len() >= threads * self.thread_bytes());
        self.machine.pool.run_tasks(threads, tasks, &|thread, task| {
            let (image, channel) = (task / channels, task % channels);
            let (group, row) = (channel / window.rows, channel % window.rows);
            // SAFETY: each task has a plane of the output and each thread its registers.
            let (plane, registers) = unsafe {
                let registers = registers_of(arguments.workspace, thread, self.thread_bytes());
                (part_mut::<f32>(output, task * pixels, pixels), registers)
            };
            plane.fill(bias.get(channel).copied().unwrap_or(0.0));
            for input in 0..window.inputs {
                let source = group * window.inputs + input;
                let x = &x[image * window.image_len() + source * window.plane_len()..][..window.plane_len()];
                let weights = &w[(source * window.rows + row) * window.taps()..][..window.taps()];
                add_plane(self.machine.isa, window, x, weights, plane);
            }
            if let Some(epilogue) = &self.epilogue {
                let extra = arguments.inputs.get(3..).unwrap_or_default();
                for (index, block) in plane.chunks_mut(BLOCK).enumerate() {
                    let (place, columns) = ((task * pixels + index * BLOCK, 0), block.len());
                    epilogue.apply(extra, block, columns, (1, columns), place, registers);
                }
            }
        });
    }
}

multiversion! {
    /// Adds one input channel's windows to one output channel.
    fn add_plane(window: &Window, x: &[f32], weights: &[f32], plane: &mut [f32]) = add
}

#[inline(always)]
fn add(window: &Window, x: &[f32], weights: &[f32], plane: &mut [f32]) {
    let ([_, height, width], stride) = (window.x, window.stride[2]);
    for (row, line) in x.chunks_exact(width.max(1)).enumerate() {
        for (tap, &weight) in weights.iter().enumerate() {
            let [tap_z, tap_y, tap_x] = window.tap(tap);
            let (z, y) = (target(window, 0, row / height, tap_z), target(window, 1, row % height, tap_y));
            let (Some(z), Some(y)) = (z, y) else { continue };
            let sums = &mut plane[(z * window.out[1] + y) * window.out[2]..][..window.out[2]];
            let shift = (tap_x * window.dilation[2]) as isize - window.before[2];
            for (column, &element) in line.iter().enumerate() {
                let position = (column * stride) as isize + shift;
                if let Some(sum) = usize::try_from(position).ok().and_then(|position| sums.get_mut(position)) {
                    *sum += weight * element;
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
