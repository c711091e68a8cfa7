//! Convolutions whose channels each see one input channel.

use super::window::Window;
use crate::isa::multiversion;
use crate::kernels::Machine;
use crate::kernels::epilogue::Epilogue;
use crate::kernels::rows::{part_mut, registers_of};
use crate::map::{BLOCK, Register};
use crate::pool::own_bytes;
use halimede_compute::{Arguments, Step};
use halimede_tensor::View;

pub(super) struct DepthwiseStep {
    window: Window,
    taps: Vec<Tap>,
    has_bias: bool,
    epilogue: Option<Epilogue>,
    machine: Machine,
}

impl DepthwiseStep {
    pub fn new(window: Window, has_bias: bool, epilogue: Option<Epilogue>, machine: Machine) -> DepthwiseStep {
        DepthwiseStep { taps: taps(&window), window, has_bias, epilogue, machine }
    }

    fn thread_bytes(&self) -> usize {
        own_bytes(self.epilogue.as_ref().map_or(0, |epilogue| epilogue.registers() * size_of::<Register>()))
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
        let threads = self.machine.pool.threads().min(tasks);
        assert!(arguments.workspace.len() >= threads * self.thread_bytes());
        let view = |index: usize| arguments.inputs.get(index).copied().flatten().unwrap_or(View::empty());
        // SAFETY: inputs are not written during the step.
        let (x, w, bias) = unsafe {
            let bias: &[f32] = if self.has_bias { view(2).slice() } else { &[] };
            (view(0).slice::<f32>(), view(1).slice::<f32>(), bias)
        };
        let output = arguments.outputs[0];
        self.machine.pool.run_tasks(threads, tasks, &|thread, task| {
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
                &self.taps,
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
        });
    }
}

multiversion! {
    /// One output channel of one image.
    fn convolve_plane(window: &Window, taps: &[Tap], x: &[f32], weights: &[f32], start: f32, plane: &mut [f32]) = convolve
}

/// A tap with the output columns for which it lies inside the input, and the input column of the first.
#[derive(Debug, Clone, Copy)]
struct Tap {
    place: [usize; 3],
    first: usize,
    last: usize,
    begin: usize,
}

/// The taps of a window: what a plane's rows have in common is worked out once.
fn taps(window: &Window) -> Vec<Tap> {
    (0..window.taps())
        .map(|index| {
            let place = window.tap(index);
            let (first, last) = window.columns_inside(place[2], 0, window.out[2]);
            let begin = first * window.stride[2] + place[2] * window.dilation[2];
            Tap { place, first, last, begin: begin.saturating_add_signed(-window.before[2]) }
        })
        .collect()
}

#[inline(always)]
fn convolve(window: &Window, taps: &[Tap], x: &[f32], weights: &[f32], start: f32, plane: &mut [f32]) {
    let ([_, out_height, out_width], width, stride) = (window.out, window.x[2], window.stride[2]);
    for (row, line) in plane.chunks_exact_mut(out_width.max(1)).enumerate() {
        line.fill(start);
        for (tap, &weight) in taps.iter().zip(weights) {
            let (z, y) =
                (window.source(0, row / out_height, tap.place[0]), window.source(1, row % out_height, tap.place[1]));
            let (Some(z), Some(y)) = (z, y) else { continue };
            if tap.first == tap.last {
                continue;
            }
            let source = &x[(z * window.x[1] + y) * width..][tap.begin..width];
            let line = &mut line[tap.first..tap.last];
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
