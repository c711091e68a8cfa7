//! Convolutions whose channels each see one input channel, on data whose channels lie last: every vector
//! is of neighbouring channels.

use super::window::Window;
use crate::isa::multiversion;
use crate::kernels::Machine;
use crate::kernels::epilogue::Epilogue;
use crate::kernels::packed::{PackedWeights, f32_bytes};
use crate::kernels::rows::{part_mut, registers_of};
use crate::map::{BLOCK, Register};
use halimede_compute::{Arguments, Step};
use halimede_tensor::{Tensor, View};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Channels whose sums stay in registers.
const LANES: usize = 32;
/// Pixels that share the weights of a tap.
const PIXELS: usize = 4;

/// Weights as `[taps, channels]`.
pub(super) struct TapWeights {
    pub shape: Vec<usize>,
    pub elements: PackedWeights,
}

impl TapWeights {
    pub fn pack(tensor: &Tensor) -> Option<TapWeights> {
        let (bytes, shape) = (f32_bytes(tensor)?, tensor.shape().to_vec());
        let (&channels, taps) = (shape.first()?, shape[1..].iter().product::<usize>());
        let mut elements = PackedWeights::zeroed(channels * taps)?;
        let (source, target) = (bytes.as_ptr().cast::<f32>(), elements.elements_mut());
        for (channel, tap) in (0..channels).flat_map(|channel| (0..taps).map(move |tap| (channel, tap))) {
            // SAFETY: an element of the tensor, read where it lies.
            target[tap * channels + channel] = unsafe { source.add(channel * taps + tap).read_unaligned() };
        }
        Some(TapWeights { shape, elements })
    }
}

pub(super) struct DepthwisePixelsStep {
    pub window: Window,
    pub weights: Arc<TapWeights>,
    pub has_bias: bool,
    pub epilogue: Option<Epilogue>,
    pub machine: Machine,
}

impl DepthwisePixelsStep {
    fn thread_bytes(&self) -> usize {
        self.epilogue.as_ref().map_or(0, |epilogue| epilogue.registers() * size_of::<Register>())
    }

    pub fn workspace(&self) -> usize {
        self.thread_bytes() * self.machine.pool.threads()
    }
}

impl Step for DepthwisePixelsStep {
    fn run(&self, arguments: &Arguments<'_>) {
        let window = &self.window;
        // A task is a row of the output.
        let tasks = window.batch * window.out[1];
        let next = AtomicUsize::new(0);
        let threads = self.machine.pool.threads().min(tasks);
        assert!(arguments.workspace.len() >= threads * self.thread_bytes());
        let view = |index: usize| arguments.inputs.get(index).copied().flatten().unwrap_or(View::empty());
        // SAFETY: inputs are not written during the step.
        let (x, bias) = unsafe {
            let bias: &[f32] = if self.has_bias { view(2).slice() } else { &[] };
            (view(0).slice::<f32>(), bias)
        };
        let output = arguments.outputs[0];
        let row_len = window.out[2] * window.groups;
        self.machine.pool.run(threads, &|thread| {
            loop {
                let task = next.fetch_add(1, Ordering::Relaxed);
                if task >= tasks {
                    return;
                }
                // SAFETY: each task has a row of the output and each thread its registers.
                let (line, registers) = unsafe {
                    let registers = registers_of(arguments.workspace, thread, self.thread_bytes());
                    (part_mut::<f32>(output, task * row_len, row_len), registers)
                };
                let (image, row) = (task / window.out[1], task % window.out[1]);
                let x = &x[image * window.image_len()..][..window.image_len()];
                convolve_row(self.machine.isa, window, &self.weights.elements, x, bias, row, line);
                if let Some(epilogue) = &self.epilogue {
                    let extra = arguments.inputs.get(3..).unwrap_or_default();
                    for (index, block) in line.chunks_mut(BLOCK).enumerate() {
                        let (place, columns) = ((task * row_len + index * BLOCK, 0), block.len());
                        epilogue.apply(extra, block, columns, (1, columns), place, registers);
                    }
                }
            }
        });
    }
}

multiversion! {
    /// One row of output pixels.
    fn convolve_row(window: &Window, weights: &[f32], x: &[f32], bias: &[f32], row: usize, line: &mut [f32]) = convolve
}

#[inline(always)]
fn convolve(window: &Window, weights: &[f32], x: &[f32], bias: &[f32], row: usize, line: &mut [f32]) {
    let (channels, width, pitch) = (window.groups, window.x[2], window.stride[2] * window.groups);
    for first in (0..window.out[2]).step_by(PIXELS) {
        let count = PIXELS.min(window.out[2] - first);
        let mut channel = 0;
        while channel < channels {
            let lanes = LANES.min(channels - channel);
            let mut sums = [[0f32; LANES]; PIXELS];
            if let Some(bias) = bias.get(channel..channel + lanes) {
                sums.iter_mut().for_each(|sums| sums[..lanes].copy_from_slice(bias));
            }
            for tap_y in 0..window.kernel[1] {
                let Some(y) = window.source(1, row, tap_y) else { continue };
                for tap_x in 0..window.kernel[2] {
                    let weights = &weights[(tap_y * window.kernel[2] + tap_x) * channels + channel..][..lanes];
                    // The first pixel's column; the others follow at the stride.
                    let column = (first * window.stride[2] + tap_x * window.dilation[2]) as isize - window.before[2];
                    let last = column + ((count - 1) * window.stride[2]) as isize;
                    let whole = column >= 0 && last < width as isize;
                    if whole && count == PIXELS && lanes == LANES {
                        let start = (y * width + column as usize) * channels + channel;
                        let x = &x[start..start + (PIXELS - 1) * pitch + LANES];
                        let weights: &[f32; LANES] = weights.try_into().expect("as many as lanes");
                        for (pixel, sums) in sums.iter_mut().enumerate() {
                            let x: &[f32; LANES] =
                                x[pixel * pitch..pixel * pitch + LANES].try_into().expect("as many as lanes");
                            for lane in 0..LANES {
                                sums[lane] += x[lane] * weights[lane];
                            }
                        }
                        continue;
                    }
                    for (pixel, sums) in sums.iter_mut().enumerate().take(count) {
                        let at = column + (pixel * window.stride[2]) as isize;
                        if (0..width as isize).contains(&at) {
                            let x = &x[(y * width + at as usize) * channels + channel..][..lanes];
                            for (sum, (&x, &weight)) in sums.iter_mut().zip(x.iter().zip(weights)) {
                                *sum += x * weight;
                            }
                        }
                    }
                }
            }
            for (pixel, sums) in sums.iter().enumerate().take(count) {
                line[(first + pixel) * channels + channel..][..lanes].copy_from_slice(&sums[..lanes]);
            }
            channel += lanes;
        }
    }
}
