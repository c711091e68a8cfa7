//! Convolutions whose channels each see one input channel.

use super::window::Window;
use crate::isa::multiversion;
use crate::kernels::Machine;
use crate::kernels::epilogue::Epilogue;
use crate::kernels::rows::{part_mut, registers_of};
use crate::map::{BLOCK, Register};
use halimede_compute::{Arguments, Step};
use halimede_tensor::View;
use std::sync::atomic::{AtomicUsize, Ordering};

pub(super) struct DepthwiseStep {
    pub window: Window,
    pub has_bias: bool,
    pub epilogue: Option<Epilogue>,
    pub machine: Machine,
}

impl DepthwiseStep {
    fn thread_bytes(&self) -> usize {
        self.epilogue.as_ref().map_or(0, |epilogue| epilogue.registers() * size_of::<Register>())
    }

    pub fn workspace(&self) -> usize {
        self.thread_bytes() * self.machine.pool.threads()
    }
}

impl Step for DepthwiseStep {
    fn run(&self, arguments: &Arguments<'_>) {
        let window = &self.window;
        let channels = window.groups * window.rows;
        let tasks = window.batch * channels;
        let next = AtomicUsize::new(0);
        let threads = self.machine.pool.threads().min(tasks);
        assert!(arguments.workspace.len() >= threads * self.thread_bytes());
        let view = |index: usize| arguments.inputs.get(index).copied().flatten().unwrap_or(View::empty());
        // SAFETY: inputs are not written during the step.
        let (x, w, bias) = unsafe {
            let bias: &[f32] = if self.has_bias { view(2).slice() } else { &[] };
            (view(0).slice::<f32>(), view(1).slice::<f32>(), bias)
        };
        let output = arguments.outputs[0];
        self.machine.pool.run(threads, &|thread| {
            loop {
                let task = next.fetch_add(1, Ordering::Relaxed);
                if task >= tasks {
                    return;
                }
                let (image, channel) = (task / channels, task % channels);
                let (pixels, taps) = (window.pixels(), window.taps());
                let source = image * window.image_len() + channel / window.rows * window.plane_len();
                // SAFETY: each task has a plane of the output and each thread its registers.
                let (plane, registers) = unsafe {
                    let registers = registers_of(arguments.workspace, thread, self.thread_bytes());
                    (part_mut::<f32>(output, task * pixels, pixels), registers)
                };
                let start = bias.get(channel).copied().unwrap_or(0.0);
                let weights = &w[channel * taps..(channel + 1) * taps];
                convolve_plane(
                    self.machine.isa,
                    window,
                    &x[source..source + window.plane_len()],
                    weights,
                    start,
                    plane,
                );
                if let Some(epilogue) = &self.epilogue {
                    let extra = arguments.inputs.get(3..).unwrap_or_default();
                    for (index, block) in plane.chunks_mut(BLOCK).enumerate() {
                        let (place, columns) = ((task * pixels + index * BLOCK, 0), block.len());
                        epilogue.apply(extra, block, columns, (1, columns), place, registers);
                    }
                }
            }
        });
    }
}

multiversion! {
    /// One output channel of one image.
    fn convolve_plane(window: &Window, x: &[f32], weights: &[f32], start: f32, plane: &mut [f32]) = convolve
}

#[inline(always)]
fn convolve(window: &Window, x: &[f32], weights: &[f32], start: f32, plane: &mut [f32]) {
    let ([_, out_height, out_width], width, stride) = (window.out, window.x[2], window.stride[2]);
    for (row, line) in plane.chunks_exact_mut(out_width.max(1)).enumerate() {
        line.fill(start);
        for (tap, &weight) in weights.iter().enumerate() {
            let [tap_z, tap_y, tap_x] = window.tap(tap);
            let (z, y) = (window.source(0, row / out_height, tap_z), window.source(1, row % out_height, tap_y));
            let (Some(z), Some(y)) = (z, y) else { continue };
            let (first, last) = window.columns_inside(tap_x, 0, out_width);
            if first == last {
                continue;
            }
            let begin = (first * stride + tap_x * window.dilation[2]).wrapping_add_signed(-window.before[2]);
            let source = &x[(z * window.x[1] + y) * width..][begin..width];
            let line = &mut line[first..last];
            match stride {
                1 => line.iter_mut().zip(source).for_each(|(sum, &element)| *sum += weight * element),
                2 => {
                    for (sum, pair) in line.iter_mut().zip(source.chunks(2)) {
                        *sum += weight * pair[0];
                    }
                }
                _ => {
                    for (sum, &element) in line.iter_mut().zip(source.iter().step_by(stride)) {
                        *sum += weight * element;
                    }
                }
            }
        }
    }
}
