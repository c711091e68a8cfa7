//! Convolutions whose channels each see one input channel, on data whose channels lie last: every vector
//! is of neighbouring channels.

use super::window::Window;
use crate::Isa;
use crate::kernels::Machine;
use crate::kernels::epilogue::Epilogue;
use crate::kernels::packed::{PackedWeights, f32_bytes};
use crate::kernels::rows::{part_mut, registers_of};
use crate::map::{BLOCK, Register};
use crate::vector::{Four, Vector};
use halimede_compute::{Arguments, Step};
use halimede_tensor::{Tensor, View};
use std::sync::Arc;

/// Pixels that share the weights of a tap: with two registers of channels each, their sums are 12 of the
/// 16 registers that AVX2 has.
const PIXELS: usize = 6;
/// The same in narrow images.
const FEW_PIXELS: usize = 2;

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
        let convolve_row = ConvolveRow::new(self.machine.isa);
        self.machine.pool.run_tasks(threads, tasks, &|thread, task| {
            // SAFETY: each task has a row of the output and each thread its registers.
            let (line, registers) = unsafe {
                let registers = registers_of(arguments.workspace, thread, self.thread_bytes());
                (part_mut::<f32>(output, task * row_len, row_len), registers)
            };
            let (image, row) = (task / window.out[1], task % window.out[1]);
            let x = &x[image * window.image_len()..][..window.image_len()];
            convolve_row.run(&Row { window, weights: &self.weights.elements, x, bias, row }, line);
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
        });
    }
}

/// One row of output pixels.
struct Row<'a> {
    window: &'a Window,
    weights: &'a [f32],
    /// The image.
    x: &'a [f32],
    bias: &'a [f32],
    row: usize,
}

/// Computes a row, of `out_width * channels` elements. Having one proves that the machine has its
/// instructions.
#[derive(Clone, Copy)]
struct ConvolveRow(unsafe fn(&Row<'_>, &mut [f32]));

impl ConvolveRow {
    fn new(isa: Isa) -> ConvolveRow {
        #[cfg(target_arch = "x86_64")]
        {
            if isa.has_avx512() {
                return ConvolveRow(x86::avx512);
            }
            if isa.has_avx2() {
                return ConvolveRow(x86::avx2);
            }
        }
        let _ = isa;
        ConvolveRow(convolve::<Four>)
    }

    fn run(self, row: &Row<'_>, line: &mut [f32]) {
        // SAFETY: `new` chose instructions that the machine has.
        unsafe { (self.0)(row, line) }
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{Row, convolve};
    use std::arch::x86_64::{__m256, __m512};

    /// # Safety
    /// The machine has AVX-512 F.
    #[target_feature(enable = "avx512f")]
    pub(super) unsafe fn avx512(row: &Row<'_>, line: &mut [f32]) {
        // SAFETY: the caller's promise, here and below.
        unsafe { convolve::<__m512>(row, line) }
    }

    /// # Safety
    /// The machine has AVX2 and FMA.
    #[target_feature(enable = "avx2,fma")]
    pub(super) unsafe fn avx2(row: &Row<'_>, line: &mut [f32]) {
        // SAFETY: as above.
        unsafe { convolve::<__m256>(row, line) }
    }
}

/// Channels by blocks of two registers, of one, one by one where there are fewer. The last block of a
/// kind ends with the last channel: it works out again what it shares with the one before.
///
/// # Safety
/// As [`Vector`].
#[inline(always)]
unsafe fn convolve<V: Vector>(row: &Row<'_>, line: &mut [f32]) {
    let channels = row.window.groups;
    // SAFETY: the caller's promise.
    unsafe {
        if channels >= 2 * V::LANES {
            for channel in blocks(2 * V::LANES, 0, channels) {
                row.columns::<V, 2>(channel, line);
            }
        } else if channels >= V::LANES {
            for channel in blocks(V::LANES, 0, channels) {
                row.columns::<V, 1>(channel, line);
            }
        } else {
            row.few_channels(line);
        }
    }
}

/// The starts of blocks of `size` that cover `from..to`, which is at least one long. The last ends at `to`.
#[inline(always)]
fn blocks(size: usize, from: usize, to: usize) -> impl Iterator<Item = usize> {
    (from..to).step_by(size).map(move |start| start.min(to - size))
}

impl Row<'_> {
    /// All columns of `N` registers of channels.
    ///
    /// # Safety
    /// As [`Vector`].
    #[inline(always)]
    unsafe fn columns<V: Vector, const N: usize>(&self, channel: usize, line: &mut [f32]) {
        let window = self.window;
        // Columns whose taps all lie inside the image.
        let stride = window.stride[2] as isize;
        let reach = ((window.kernel[2] - 1) * window.dilation[2]) as isize;
        let left = (window.before[2].max(0) as usize).div_ceil(window.stride[2]).min(window.out[2]);
        let right = (window.x[2] as isize + window.before[2] - reach + stride - 1).max(0) as usize / window.stride[2];
        let right = right.clamp(left, window.out[2]);
        // SAFETY: the caller's promise.
        unsafe {
            if right - left >= PIXELS {
                for column in blocks(PIXELS, left, right) {
                    self.pixels::<V, N, PIXELS>(channel, column, line);
                }
            } else if right - left >= FEW_PIXELS {
                for column in blocks(FEW_PIXELS, left, right) {
                    self.pixels::<V, N, FEW_PIXELS>(channel, column, line);
                }
            } else {
                for column in left..right {
                    self.pixels::<V, N, 1>(channel, column, line);
                }
            }
            for column in (0..left).chain(right..window.out[2]) {
                self.pixels::<V, N, 1>(channel, column, line);
            }
        }
    }

    /// `P` neighbouring pixels of `N` registers of channels: the sums stay in registers. Where there are
    /// several pixels, all their taps lie inside the image.
    ///
    /// # Safety
    /// As [`Vector`].
    #[inline(always)]
    unsafe fn pixels<V: Vector, const N: usize, const P: usize>(
        &self,
        channel: usize,
        column: usize,
        line: &mut [f32],
    ) {
        let (window, channels, len) = (self.window, self.window.groups, N * V::LANES);
        let pitch = window.stride[2] * channels;
        // SAFETY: the caller's promise; every slice has `len` elements from each place read.
        unsafe {
            let mut sums = [[V::splat(0.0); N]; P];
            if let Some(bias) = self.bias.get(channel..channel + len) {
                for index in 0..N {
                    let bias = V::load(bias.as_ptr().add(index * V::LANES));
                    for sums in &mut sums {
                        sums[index] = bias;
                    }
                }
            }
            for tap_y in 0..window.kernel[1] {
                let Some(y) = window.source(1, self.row, tap_y) else { continue };
                for tap_x in 0..window.kernel[2] {
                    let Some(from) = window.source(2, column, tap_x) else { continue };
                    let x = &self.x[(y * window.x[2] + from) * channels + channel..][..(P - 1) * pitch + len];
                    let weights = &self.weights[(tap_y * window.kernel[2] + tap_x) * channels + channel..][..len];
                    for index in 0..N {
                        let weights = V::load(weights.as_ptr().add(index * V::LANES));
                        for pixel in 0..P {
                            let x = V::load(x.as_ptr().add(pixel * pitch + index * V::LANES));
                            sums[pixel][index] = sums[pixel][index].plus_product(x, weights);
                        }
                    }
                }
            }
            for pixel in 0..P {
                let line = &mut line[(column + pixel) * channels + channel..][..len];
                for index in 0..N {
                    sums[pixel][index].store(line.as_mut_ptr().add(index * V::LANES));
                }
            }
        }
    }

    /// Fewer channels than a register has.
    #[inline(always)]
    fn few_channels(&self, line: &mut [f32]) {
        let (window, channels) = (self.window, self.window.groups);
        for (column, sums) in line.chunks_exact_mut(channels).enumerate() {
            match self.bias {
                [] => sums.fill(0.0),
                bias => sums.copy_from_slice(bias),
            }
            for tap_y in 0..window.kernel[1] {
                let Some(y) = window.source(1, self.row, tap_y) else { continue };
                for tap_x in 0..window.kernel[2] {
                    let Some(from) = window.source(2, column, tap_x) else { continue };
                    let x = &self.x[(y * window.x[2] + from) * channels..][..channels];
                    let weights = &self.weights[(tap_y * window.kernel[2] + tap_x) * channels..][..channels];
                    for (sum, (&x, &weight)) in sums.iter_mut().zip(x.iter().zip(weights)) {
                        *sum += x * weight;
                    }
                }
            }
        }
    }
}
