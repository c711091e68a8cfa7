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
                let extra = arguments.inputs.get(3..).unwrap_or_default();
                if let Some(bounded) = self.epilogue.as_ref().and_then(Epilogue::bounded) {
                    let residual = bounded.residual.and_then(|input| extra[input]);
                    // SAFETY: inputs are not written during the step.
                    let residual = residual.map(|view| unsafe { &view.slice::<f32>()[task * row_len..][..row_len] });
                    bounded.apply(self.machine.isa, line, residual);
                } else if let Some(epilogue) = &self.epilogue {
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
    let channels = window.groups;
    // Columns whose taps all lie inside the image.
    let reach = (window.kernel[2] - 1) * window.dilation[2];
    let stride = window.stride[2];
    let left = (window.before[2].max(0) as usize).div_ceil(stride).min(window.out[2]);
    let right =
        (window.x[2] as isize + window.before[2] - reach as isize + stride as isize - 1).max(0) as usize / stride;
    let right = right.clamp(left, window.out[2]);
    let taps = Taps { window, weights, x, bias, row };
    let mut channel = 0;
    while channel < channels {
        let lanes = match channels - channel {
            32.. => 32,
            16.. => 16,
            rest => rest,
        };
        let mut column = left;
        while column + PIXELS <= right {
            match lanes {
                32 => taps.inside::<32>(channel, column, line),
                16 => taps.inside::<16>(channel, column, line),
                _ => taps.any(channel, lanes, (column, column + PIXELS), line),
            }
            column += PIXELS;
        }
        taps.any(channel, lanes, (0, left), line);
        taps.any(channel, lanes, (column, window.out[2]), line);
        channel += lanes;
    }
}

/// What one row of output pixels is made of.
struct Taps<'a> {
    window: &'a Window,
    weights: &'a [f32],
    x: &'a [f32],
    bias: &'a [f32],
    row: usize,
}

impl Taps<'_> {
    /// [`PIXELS`] pixels whose taps all lie inside the image, `L` channels of each: the sums stay in
    /// registers.
    #[inline(always)]
    fn inside<const L: usize>(&self, channel: usize, column: usize, line: &mut [f32]) {
        let (window, channels) = (self.window, self.window.groups);
        let pitch = window.stride[2] * channels;
        let mut sums = [[0f32; L]; PIXELS];
        if let Some(bias) = self.bias.get(channel..channel + L) {
            sums.iter_mut().for_each(|sums| sums.copy_from_slice(bias));
        }
        let first = (column * window.stride[2]).wrapping_add_signed(-window.before[2]);
        for tap_y in 0..window.kernel[1] {
            let Some(y) = window.source(1, self.row, tap_y) else { continue };
            for tap_x in 0..window.kernel[2] {
                let at = (y * window.x[2] + first + tap_x * window.dilation[2]) * channels + channel;
                let x = &self.x[at..at + (PIXELS - 1) * pitch + L];
                let weights = &self.weights[(tap_y * window.kernel[2] + tap_x) * channels + channel..][..L];
                for (pixel, sums) in sums.iter_mut().enumerate() {
                    let x = &x[pixel * pitch..pixel * pitch + L];
                    for lane in 0..L {
                        sums[lane] += x[lane] * weights[lane];
                    }
                }
            }
        }
        for (pixel, sums) in sums.iter().enumerate() {
            line[(column + pixel) * channels + channel..][..L].copy_from_slice(sums);
        }
    }

    /// Any pixels and channels.
    #[inline(always)]
    fn any(&self, channel: usize, lanes: usize, (first, last): (usize, usize), line: &mut [f32]) {
        let (window, channels) = (self.window, self.window.groups);
        for column in first..last {
            let sums = &mut line[column * channels + channel..][..lanes];
            match self.bias.get(channel..channel + lanes) {
                Some(bias) => sums.copy_from_slice(bias),
                None => sums.fill(0.0),
            }
            for tap_y in 0..window.kernel[1] {
                let Some(y) = window.source(1, self.row, tap_y) else { continue };
                for tap_x in 0..window.kernel[2] {
                    let Some(at) = window.source(2, column, tap_x) else { continue };
                    let x = &self.x[(y * window.x[2] + at) * channels + channel..][..lanes];
                    let weights = &self.weights[(tap_y * window.kernel[2] + tap_x) * channels + channel..][..lanes];
                    for (sum, (&x, &weight)) in sums.iter_mut().zip(x.iter().zip(weights)) {
                        *sum += x * weight;
                    }
                }
            }
        }
    }
}
