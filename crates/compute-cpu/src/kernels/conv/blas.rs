//! Convolutions of f32 by a library that multiplies whole matrices: what pixels see is written down as a matrix first.
//!
//! ```text
//! for each image, group and block of pixels                          a task
//!     write what the pixels see, channels and taps in the weights' order   (not for 1 x 1: that is the data)
//!     channels first: C [rows, pixels] = weights [rows, depth] · seen [depth, pixels]
//!     channels last:  C [pixels, rows] = seen [pixels, depth] · weights [rows, depth]ᵀ
//!     bias and epilogue, on C where it lies
//! ```

use super::patches::pack_patches;
use super::window::Window;
use crate::Blas;
use crate::blas::{Lying, Sizes};
use crate::kernels::Machine;
use crate::kernels::epilogue::Epilogue;
use crate::kernels::packed::{PackedWeights, f32_bytes, number};
use crate::map::Register;
use crate::pool::own_bytes;
use halimede_compute::packed::Packer;
use halimede_compute::{Arguments, Prepared, Step};
use halimede_tensor::{Tensor, View};
use std::sync::Arc;

/// What a block of pixels sees, in bytes, about: it stays in the second-level cache.
const SEEN_BYTES: usize = 1 << 20;
/// Pixels of a block, at most; one that is cut smaller for the sake of the cache or of threads has a sixteenth.
const PIXELS: usize = 1024;

/// Weights of convolutions with the channels last: per output channel what it multiplies, `[taps, channels]`.
pub(super) struct TapRows {
    /// Of the weights as the model has them.
    pub shape: Vec<usize>,
    pub elements: PackedWeights,
}

impl TapRows {
    /// Packs the weights `[M, C/groups, ...]` of a convolution.
    pub fn pack(tensor: &Tensor, packer: &Packer) -> Option<TapRows> {
        let bytes = f32_bytes(tensor)?;
        let channels = *tensor.shape().get(1)?;
        let taps: usize = tensor.shape()[2..].iter().product();
        let elements = PackedWeights::new(packer, "rows of taps", tensor.len(), |elements| {
            for (row, packed) in elements.chunks_exact_mut((channels * taps).max(1)).enumerate() {
                for (tap, packed) in packed.chunks_exact_mut(channels).enumerate() {
                    for (channel, element) in packed.iter_mut().enumerate() {
                        *element = number(bytes, (row * channels + channel) * taps + tap);
                    }
                }
            }
        })?;
        Some(TapRows { shape: tensor.shape().to_vec(), elements })
    }
}

pub(super) struct BlasConvStep {
    window: Window,
    /// With the channels last; channels first, weights are read where they lie.
    rows: Option<Arc<TapRows>>,
    has_bias: bool,
    epilogue: Option<Epilogue>,
    machine: Machine,
    blas: Blas,
    /// Pixels of a block.
    block: usize,
}

impl BlasConvStep {
    /// Whether the library takes matrices of such sizes.
    pub fn takes(window: &Window) -> bool {
        let sizes = Sizes { m: window.rows, n: window.batch * window.pixels(), k: window.depth() };
        let channels = window.groups * window.inputs.max(window.rows);
        let longest = Lying::rows(window.plane_len().max(channels).max(window.depth()));
        Blas::takes(sizes, longest, longest, window.pixels())
    }

    pub fn new(
        mut window: Window,
        rows: Option<Arc<TapRows>>,
        has_bias: bool,
        epilogue: Option<Epilogue>,
        machine: Machine,
        blas: Blas,
    ) -> BlasConvStep {
        if rows.is_some() && window.is_pointwise() {
            // Every pixel of every image is a row of one product.
            let pixels = window.batch * window.pixels();
            (window.batch, window.x, window.out) = (1, [1, 1, pixels], [1, 1, pixels]);
        }
        let seen = SEEN_BYTES / (window.depth().max(1) * size_of::<f32>());
        let shared = (window.batch * window.groups * window.pixels()).div_ceil(machine.threads());
        let block = seen.min(shared).clamp(PIXELS / 16, PIXELS).min(window.pixels().max(1));
        BlasConvStep { window, rows, has_bias, epilogue, machine, blas, block }
    }

    pub fn prepared(self) -> Prepared {
        let workspace = self.thread_bytes() * self.machine.threads();
        Prepared { step: Box::new(self), workspace }
    }

    fn registers_bytes(&self) -> usize {
        self.epilogue.as_ref().map_or(0, |epilogue| epilogue.registers() * size_of::<Register>())
    }

    fn seen_len(&self) -> usize {
        if self.window.is_pointwise() { 0 } else { self.block * self.window.depth() }
    }

    /// Per thread: registers of the epilogue, what a block sees. Not nothing, which would have no
    /// address.
    fn thread_bytes(&self) -> usize {
        own_bytes(self.registers_bytes() + (self.seen_len() * size_of::<f32>()).max(1))
    }
}

impl Step for BlasConvStep {
    fn run(&self, arguments: &Arguments<'_>) {
        if arguments.outputs[0].is_empty() {
            return;
        }
        let window = &self.window;
        let blocks = window.pixels().div_ceil(self.block);
        let tasks = window.batch * window.groups * blocks;
        let threads = self.machine.threads().min(tasks);
        assert!(arguments.workspace.len() >= threads * self.thread_bytes());
        self.machine.pool.run_tasks(threads, tasks, &|thread, task| {
            let (rest, block) = (task / blocks, task % blocks);
            let pixels = (block * self.block, window.pixels().min((block + 1) * self.block));
            self.run_task(arguments, thread, (rest / window.groups, rest % window.groups), pixels);
        });
    }
}

/// A part of the output that one task computes.
struct Part {
    image: usize,
    group: usize,
    /// The first pixel, and how many.
    first: usize,
    count: usize,
}

impl BlasConvStep {
    fn run_task(
        &self,
        arguments: &Arguments<'_>,
        thread: usize,
        (image, group): (usize, usize),
        (first, last): (usize, usize),
    ) {
        let window = &self.window;
        let view = |index: usize| arguments.inputs.get(index).copied().flatten().unwrap_or(View::empty());
        // SAFETY: inputs are not written during the step; the thread's part of the workspace is its own.
        let (x, bias, registers, seen) = unsafe {
            let start = arguments.workspace.as_ptr().add(thread * self.thread_bytes());
            let count = self.registers_bytes() / size_of::<Register>();
            let seen = start.add(self.registers_bytes()).cast::<f32>();
            (
                view(0).slice::<f32>(),
                if self.has_bias { view(2).slice::<f32>() } else { &[] },
                std::slice::from_raw_parts_mut(start.cast::<Register>(), count),
                std::slice::from_raw_parts_mut(seen, self.seen_len()),
            )
        };
        let image_x = &x[image * window.image_len()..][..window.image_len()];
        let bias = bias.get(group * window.rows..(group + 1) * window.rows).unwrap_or_default();
        let part = Part { image, group, first, count: last - first };
        let extra = arguments.inputs.get(3..).unwrap_or_default();
        let output = arguments.outputs[0].as_ptr().cast::<f32>();
        // SAFETY: this task alone writes these channels of these pixels, which lie inside of the output.
        unsafe {
            let (start, row, sizes) = match &self.rows {
                Some(rows) => self.channels_last(&part, image_x, &rows.elements, seen, output, bias),
                None => {
                    let weights = view(1).slice::<f32>();
                    self.channels_first(&part, image_x, weights, seen, output, bias)
                }
            };
            if let Some(epilogue) = &self.epilogue {
                epilogue.apply_to_output(extra, output, sizes, (start, row), registers);
            }
        }
    }

    /// Products and bias of a part. Returns where its first element lies in the output, the distance of rows there,
    /// and how many rows of how many elements it has.
    ///
    /// # Safety
    /// The output has the sizes of the window, and nobody else uses this part.
    unsafe fn channels_first(
        &self,
        part: &Part,
        image_x: &[f32],
        weights: &[f32],
        seen: &mut [f32],
        output: *mut f32,
        bias: &[f32],
    ) -> (usize, usize, (usize, usize)) {
        let window = &self.window;
        let (rows, depth, pixels, plane) = (window.rows, window.depth(), window.pixels(), window.plane_len());
        let group_x = &image_x[part.group * window.inputs * plane..][..window.inputs * plane];
        let (seen, lying) = match window.is_pointwise() {
            true => (&group_x[part.first.min(group_x.len())..], Lying::rows(plane)),
            false => {
                let seen = &mut seen[..depth * part.count];
                pack_patches(window, group_x, 0, part.first, part.count, seen);
                (&*seen, Lying::rows(part.count))
            }
        };
        let weights = &weights[part.group * rows * depth..][..rows * depth];
        let start = (part.image * window.groups + part.group) * rows * pixels + part.first;
        let sizes = Sizes { m: rows, n: part.count, k: depth };
        // SAFETY: rows of these sizes lie in the slices; the caller's promise for the output.
        unsafe {
            let weights = (weights.as_ptr(), Lying::rows(depth));
            self.blas.multiply(sizes, weights, (seen.as_ptr(), lying), (output.add(start), pixels));
            for (row, bias) in bias.iter().enumerate() {
                let line = std::slice::from_raw_parts_mut(output.add(start + row * pixels), part.count);
                line.iter_mut().for_each(|element| *element += bias);
            }
        }
        (start, pixels, (rows, part.count))
    }

    /// The same with the channels last.
    ///
    /// # Safety
    /// As [`BlasConvStep::channels_first`].
    unsafe fn channels_last(
        &self,
        part: &Part,
        image_x: &[f32],
        weights: &[f32],
        seen: &mut [f32],
        output: *mut f32,
        bias: &[f32],
    ) -> (usize, usize, (usize, usize)) {
        let window = &self.window;
        let (rows, depth) = (window.rows, window.depth());
        let channels = window.groups * window.inputs;
        let (seen, lying) = match window.is_pointwise() {
            true => {
                let from = part.first * channels + part.group * window.inputs;
                (&image_x[from.min(image_x.len())..], Lying::rows(channels))
            }
            false => {
                let seen = &mut seen[..part.count * depth];
                write_seen(window, image_x, part, seen);
                (&*seen, Lying::rows(depth))
            }
        };
        let weights = &weights[part.group * rows * depth..][..rows * depth];
        let row = window.groups * rows;
        let start = (part.image * window.pixels() + part.first) * row + part.group * rows;
        let sizes = Sizes { m: part.count, n: rows, k: depth };
        // SAFETY: rows of these sizes lie in the slices; the caller's promise for the output.
        unsafe {
            let weights = (weights.as_ptr(), Lying::columns(depth));
            self.blas.multiply(sizes, (seen.as_ptr(), lying), weights, (output.add(start), row));
            for pixel in (0..part.count).filter(|_| !bias.is_empty()) {
                let line = std::slice::from_raw_parts_mut(output.add(start + pixel * row), rows);
                line.iter_mut().zip(bias).for_each(|(element, bias)| *element += bias);
            }
        }
        (start, row, (part.count, rows))
    }
}

/// Writes what pixels see with the channels last, `[taps, channels]` for each, with zeros in the border.
fn write_seen(window: &Window, image_x: &[f32], part: &Part, seen: &mut [f32]) {
    let channels = window.groups * window.inputs;
    let width = window.out[2];
    for (pixel, line) in (part.first..).zip(seen.chunks_exact_mut(window.depth().max(1))) {
        for (tap, line) in line.chunks_exact_mut(window.inputs).enumerate() {
            let [_, tap_y, tap_x] = window.tap(tap);
            let place = (window.source(1, pixel / width, tap_y), window.source(2, pixel % width, tap_x));
            let (Some(y), Some(x)) = place else {
                line.fill(0.0);
                continue;
            };
            let from = (y * window.x[2] + x) * channels + part.group * window.inputs;
            line.copy_from_slice(&image_x[from..from + window.inputs]);
        }
    }
}
