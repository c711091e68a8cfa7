//! Convolutions whose channels each see one input channel, on data whose channels lie last: every vector
//! is of neighbouring channels. Data and result lie in memory in f32 or bf16; the sums are f32.
//!
//! ```text
//! for each row of the output                                   a task
//!     for each two registers of channels
//!         for each block of neighbouring pixels                their sums stay in registers
//!             for each row of the kernel
//!                 for each pixel that one of them sees
//!                     load it once, multiply it by every tap that it meets
//! ```

use super::window::Window;
use crate::Isa;
use crate::kernels::Machine;
use crate::kernels::ending::{Ending, UNBOUNDED};
use crate::kernels::epilogue::{Epilogue, within};
use crate::kernels::packed::{PackedWeights, f32_bytes};
use crate::kernels::rows::{part_mut, registers_of};
use crate::map::{BLOCK, Register};
use crate::real::{Numbers, Real};
use crate::vector::{Four, Vector};
use half::bf16;
use halimede_compute::packed::Packer;
use halimede_compute::{Arguments, Step};
use halimede_tensor::{DType, Tensor, View};
use std::sync::Arc;

/// Registers of channels of a block.
const WIDE: usize = 2;
/// Pixels of a block where there are 32 registers: their sums are 14, beside the taps of a row of the kernel.
const PIXELS: usize = 7;
/// The same with 16 registers, and in images whose rows are so divided with less left over.
const FEW_PIXELS: usize = 4;

/// Weights as `[taps, channels]`.
pub(super) struct TapWeights {
    pub shape: Vec<usize>,
    pub elements: PackedWeights,
}

impl TapWeights {
    pub fn pack(tensor: &Tensor, packer: &Packer) -> Option<TapWeights> {
        let (bytes, shape) = (f32_bytes(tensor)?, tensor.shape().to_vec());
        let (&channels, taps) = (shape.first()?, shape[1..].iter().product::<usize>());
        let elements = PackedWeights::new(packer, "taps", channels * taps, |target| {
            let source = bytes.as_ptr().cast::<f32>();
            for (channel, tap) in (0..channels).flat_map(|channel| (0..taps).map(move |tap| (channel, tap))) {
                // SAFETY: an element of the tensor, read where it lies.
                target[tap * channels + channel] = unsafe { source.add(channel * taps + tap).read_unaligned() };
            }
        })?;
        Some(TapWeights { shape, elements })
    }
}

pub(super) struct DepthwisePixelsStep {
    window: Window,
    weights: Arc<TapWeights>,
    has_bias: bool,
    epilogue: Option<Epilogue>,
    data: DType,
    output: DType,
    machine: Machine,
}

impl DepthwisePixelsStep {
    /// `data` and `output` are the datatypes of both, f32 or bf16.
    pub fn new(
        window: Window,
        weights: Arc<TapWeights>,
        has_bias: bool,
        epilogue: Option<Epilogue>,
        (data, output): (DType, DType),
        machine: Machine,
    ) -> DepthwisePixelsStep {
        DepthwisePixelsStep { window, weights, has_bias, epilogue, data, output, machine }
    }

    fn row_len(&self) -> usize {
        self.window.out[2] * self.window.groups
    }

    /// What follows the sums while they are in registers; `None` where it is done on whole rows.
    fn bounds(&self) -> Option<(f32, f32)> {
        let Some(epilogue) = &self.epilogue else { return Some(UNBOUNDED) };
        epilogue.common().filter(|common| common.only_bounds()).map(|common| (common.low, common.high))
    }

    fn registers_bytes(&self) -> usize {
        self.epilogue.as_ref().map_or(0, |epilogue| epilogue.registers() * size_of::<Register>())
    }

    /// Per thread, where rows of sums have an epilogue: its registers and a row.
    fn thread_bytes(&self) -> usize {
        let row = (self.row_len() * size_of::<f32>()).next_multiple_of(64);
        if self.bounds().is_some() { 0 } else { self.registers_bytes() + row }
    }

    pub fn workspace(&self) -> usize {
        self.thread_bytes() * self.machine.pool.threads()
    }

    fn run_as<T: Real>(&self, arguments: &Arguments<'_>) {
        let window = &self.window;
        // A task is a row of the output.
        let tasks = window.batch * window.out[1];
        let threads = self.machine.pool.threads().min(tasks);
        assert!(arguments.workspace.len() >= threads * self.thread_bytes());
        let view = |index: usize| arguments.inputs.get(index).copied().flatten().unwrap_or(View::empty());
        // SAFETY: inputs are not written during the step.
        let (x, bias) = unsafe {
            let bias: &[f32] = if self.has_bias { view(2).slice() } else { &[] };
            (view(0).slice::<T>(), bias)
        };
        let (output, row_len) = (arguments.outputs[0], self.row_len());
        let convolve_row = ConvolveRow::<T>::new(self.machine.isa, window.groups, self.output);
        self.machine.pool.run_tasks(threads, tasks, &|thread, task| {
            let (image, row) = (task / window.out[1], task % window.out[1]);
            let x = &x[image * window.image_len()..][..window.image_len()];
            let target = Numbers::of(output, self.output, task * row_len, row_len);
            let whole = Row { window, weights: &self.weights.elements, x, bias, row, bounds: UNBOUNDED, target };
            if let Some(bounds) = self.bounds() {
                // SAFETY: each task has a row of the output.
                return unsafe { convolve_row.run(&Row { bounds, ..whole }) };
            }
            // SAFETY: each task has a row of the output and each thread its part of the workspace.
            unsafe {
                let scratch = arguments.workspace.part(thread * self.thread_bytes(), self.thread_bytes());
                let registers = registers_of(scratch, 0, self.registers_bytes());
                let line = part_mut::<f32>(scratch, self.registers_bytes() / size_of::<f32>(), row_len);
                convolve_row.run(&Row { target: Numbers::F32(line.as_mut_ptr()), ..whole });
                self.finish(arguments, task * row_len, line, target, registers);
            }
        });
    }

    /// Applies the epilogue to a row of sums whose first element has the place `start` in the output.
    ///
    /// # Safety
    /// The target is valid for the row, and nobody else touches it.
    unsafe fn finish(
        &self,
        arguments: &Arguments<'_>,
        start: usize,
        line: &mut [f32],
        target: Numbers,
        registers: &mut [Register],
    ) {
        let mut ending = Ending::new((1, line.len()), line.len(), &[], target, line.len());
        let extra = arguments.inputs.get(3..).unwrap_or_default();
        if let Some(epilogue) = &self.epilogue {
            match epilogue.common().filter(|common| common.bias.is_none()) {
                Some(common) => ending.follow(common, extra, start),
                None => {
                    for (index, block) in line.chunks_mut(BLOCK).enumerate() {
                        let (place, columns) = ((start + index * BLOCK, 0), block.len());
                        epilogue.apply(extra, block, columns, (1, columns), place, registers);
                    }
                }
            }
        }
        // SAFETY: the caller's promise; the residual has the output's elements.
        unsafe { ending.run(self.machine.isa, line) };
    }
}

impl Step for DepthwisePixelsStep {
    fn run(&self, arguments: &Arguments<'_>) {
        match self.data {
            DType::Bf16 => self.run_as::<bf16>(arguments),
            _ => self.run_as::<f32>(arguments),
        }
    }
}

/// One row of output pixels.
#[derive(Clone, Copy)]
struct Row<'a, T> {
    window: &'a Window,
    weights: &'a [f32],
    /// The image.
    x: &'a [T],
    bias: &'a [f32],
    row: usize,
    /// What results are kept within.
    bounds: (f32, f32),
    /// `out_width * channels` results.
    target: Numbers,
}

/// Computes a row. Having one proves that the machine has its instructions.
#[derive(Clone, Copy)]
struct ConvolveRow<T>(unsafe fn(&Row<'_, T>));

impl<T: Real> ConvolveRow<T> {
    /// By the widest registers of which so many channels fill a block, for results of a datatype.
    fn new(isa: Isa, channels: usize, output: DType) -> ConvolveRow<T> {
        #[cfg(target_arch = "x86_64")]
        {
            use crate::vector::{Avx2, Avx512};
            if isa.has_avx512_bf16() && channels >= WIDE * Avx512::LANES && output == DType::Bf16 {
                return ConvolveRow(x86::avx512_bf16);
            }
            if isa.has_avx512() && channels >= WIDE * Avx512::LANES {
                return ConvolveRow(x86::avx512);
            }
            if isa.has_avx2() && channels >= WIDE * Avx2::LANES {
                return ConvolveRow(x86::avx2);
            }
        }
        let _ = (isa, output);
        if channels >= WIDE * Four::LANES { ConvolveRow(convolve::<Four, T>) } else { ConvolveRow(convolve_few) }
    }

    /// # Safety
    /// The target of `row` is valid, and nobody else touches it.
    unsafe fn run(self, row: &Row<'_, T>) {
        // SAFETY: `new` chose instructions that the machine has; the caller's promise.
        unsafe { (self.0)(row) }
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{Row, convolve};
    use crate::real::Real;
    use crate::vector::{Avx2, Avx512, Avx512Bf16};

    /// # Safety
    /// As [`convolve`], on a machine with AVX-512 F.
    #[target_feature(enable = "avx512f")]
    pub(super) unsafe fn avx512<T: Real>(row: &Row<'_, T>) {
        // SAFETY: the caller's promise, here and below.
        unsafe { convolve::<Avx512, T>(row) }
    }

    /// # Safety
    /// As [`convolve`], on a machine with AVX-512 F and BF16.
    #[target_feature(enable = "avx512f,avx512bf16")]
    pub(super) unsafe fn avx512_bf16<T: Real>(row: &Row<'_, T>) {
        // SAFETY: as above.
        unsafe { convolve::<Avx512Bf16, T>(row) }
    }

    /// # Safety
    /// As [`convolve`], on a machine with AVX2 and FMA.
    #[target_feature(enable = "avx2,fma")]
    pub(super) unsafe fn avx2<T: Real>(row: &Row<'_, T>) {
        // SAFETY: as above.
        unsafe { convolve::<Avx2, T>(row) }
    }
}

/// Channels by blocks of two registers, which they fill at least once. The last block ends with the last
/// channel: it works out again what it shares with the one before.
///
/// # Safety
/// As [`Vector`] and [`ConvolveRow::run`].
#[inline(always)]
unsafe fn convolve<V: Vector, T: Real>(row: &Row<'_, T>) {
    let window = row.window;
    let touching = window.stride[2] == 1 && window.dilation[2] == 1;
    for channel in blocks(WIDE * V::LANES, window.groups) {
        // SAFETY: the caller's promise.
        unsafe {
            match window.kernel[2] {
                3 if touching => row.columns::<V, 3>(channel),
                5 if touching => row.columns::<V, 5>(channel),
                _ => row.columns::<V, 1>(channel),
            }
        }
    }
}

/// The starts of blocks of `size` that cover `0..to`, which is at least one long. The last ends at `to`.
#[inline(always)]
fn blocks(size: usize, to: usize) -> impl Iterator<Item = usize> {
    (0..to).step_by(size).map(move |start| start.min(to - size))
}

/// Fewer channels than the narrowest block has.
///
/// # Safety
/// As [`ConvolveRow::run`].
unsafe fn convolve_few<T: Real>(row: &Row<'_, T>) {
    let (window, channels) = (row.window, row.window.groups);
    for column in 0..window.out[2] {
        let mut sums = [0f32; WIDE * Four::LANES];
        let sums = &mut sums[..channels];
        if !row.bias.is_empty() {
            sums.copy_from_slice(row.bias);
        }
        for tap_y in 0..window.kernel[1] {
            let Some(y) = window.source(1, row.row, tap_y) else { continue };
            for tap_x in 0..window.kernel[2] {
                let Some(from) = window.source(2, column, tap_x) else { continue };
                let x = &row.x[(y * window.x[2] + from) * channels..][..channels];
                let weights = &row.weights[(tap_y * window.kernel[2] + tap_x) * channels..][..channels];
                for (sum, (&x, &weight)) in sums.iter_mut().zip(x.iter().zip(weights)) {
                    *sum += x.widen() * weight;
                }
            }
        }
        for (channel, &sum) in sums.iter().enumerate() {
            // SAFETY: the caller's promise.
            unsafe { row.target.set(column * channels + channel, within(sum, row.bounds)) };
        }
    }
}

impl<T: Real> Row<'_, T> {
    /// All columns of a block of channels, `TAPS` taps of a row of the kernel at a time, which divide its
    /// width; several where stride and dilation are 1.
    ///
    /// # Safety
    /// As [`convolve`].
    #[inline(always)]
    unsafe fn columns<V: Vector, const TAPS: usize>(&self, channel: usize) {
        let width = self.window.out[2];
        // Each block costs about as much as a pixel beside its pixels.
        let cost = |pixels: usize| width.div_ceil(pixels) * (pixels + 1);
        // SAFETY: the caller's promise.
        unsafe {
            if V::REGISTERS >= 32 && width >= PIXELS && cost(PIXELS) <= cost(FEW_PIXELS) {
                for column in blocks(PIXELS, width) {
                    self.pixels::<V, TAPS, PIXELS>(channel, column);
                }
            } else if width >= FEW_PIXELS {
                for column in blocks(FEW_PIXELS, width) {
                    self.pixels::<V, TAPS, FEW_PIXELS>(channel, column);
                }
            } else {
                for column in 0..width {
                    self.pixels::<V, 1, 1>(channel, column);
                }
            }
        }
    }

    /// A block: `P` neighbouring pixels of two registers of channels.
    ///
    /// # Safety
    /// As [`convolve`].
    #[inline(always)]
    unsafe fn pixels<V: Vector, const TAPS: usize, const P: usize>(&self, channel: usize, column: usize) {
        let (window, channels, len) = (self.window, self.window.groups, WIDE * V::LANES);
        let width = window.x[2];
        assert!(channel + len <= channels && self.x.len() >= window.x[1] * width * channels);
        assert!(self.weights.len() >= window.kernel[1] * window.kernel[2] * channels);
        // SAFETY: the caller's promise; pixels inside the image and taps of the kernel have `len` channels
        // from the first on (just checked).
        unsafe {
            let mut sums = [[V::splat(0.0); WIDE]; P];
            if let Some(bias) = self.bias.get(channel..channel + len) {
                for index in 0..WIDE {
                    let bias = V::load(bias.as_ptr().add(index * V::LANES));
                    for sums in &mut sums {
                        sums[index] = bias;
                    }
                }
            }
            for tap_y in 0..window.kernel[1] {
                let Some(y) = window.source(1, self.row, tap_y) else { continue };
                let line = self.x.as_ptr().add(y * width * channels + channel);
                for tap_x in (0..window.kernel[2]).step_by(TAPS) {
                    let taps = self.weights.as_ptr().add((tap_y * window.kernel[2] + tap_x) * channels + channel);
                    let mut weights = [[V::splat(0.0); WIDE]; TAPS];
                    for tap in 0..TAPS {
                        for index in 0..WIDE {
                            weights[tap][index] = V::load(taps.add(tap * channels + index * V::LANES));
                        }
                    }
                    let first = (column * window.stride[2] + tap_x * window.dilation[2]) as isize - window.before[2];
                    for seen in 0..P + TAPS - 1 {
                        // Of several taps the pixels that are seen touch; one tap sees one for each pixel.
                        let at = first.wrapping_add_unsigned(seen * if TAPS == 1 { window.stride[2] } else { 1 });
                        if at as usize >= width {
                            continue;
                        }
                        for index in 0..WIDE {
                            let x: V = T::load(line.add(at as usize * channels + index * V::LANES));
                            for tap in 0..TAPS {
                                if seen >= tap && seen - tap < P {
                                    let sum = &mut sums[seen - tap][index];
                                    *sum = sum.plus_product(x, weights[tap][index]);
                                }
                            }
                        }
                    }
                }
            }
            let (low, high) = (V::splat(self.bounds.0), V::splat(self.bounds.1));
            for pixel in 0..P {
                for index in 0..WIDE {
                    let sum = sums[pixel][index].at_least(low).at_most(high);
                    self.target.store((column + pixel) * channels + channel + index * V::LANES, sum);
                }
            }
        }
    }
}
