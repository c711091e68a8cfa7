//! What a task of a convolution sees, as the matrix unit reads it.

use super::super::window::Window;
use super::strip;
use crate::Isa;
use crate::isa::multiversion;
use crate::matrix::{self, BLOCK, Factor, STEP_BYTES, Seen, TILE};
use halimede_compute::layout::{LINE_BYTES, rows_apart};
use halimede_tensor::{DType, Element};

/// Pixels this far apart fall into one set of the first-level cache.
const CACHE_PERIOD: usize = 2048;

/// How what a task sees lies.
#[derive(Clone, Copy)]
pub(super) enum Form {
    /// A copy, all channels of a pixel together.
    Pixels,
    /// A copy with a block of places for each step of channels.
    Blocks,
    /// A copy of rows as they are, of so many places that begin so many bytes apart and overlap.
    Overlapping { width: usize, pitch: usize },
    /// Where it is: rows of so many places, and bytes from one block to the next, and from one image.
    InPlace { line: usize, apart: usize, image: usize },
}

/// Where a task's rows of the product lie: in a copy of what it sees, or in the data.
pub(super) struct Copy {
    /// Rows of the output of one task.
    pub rows: usize,
    /// Places in a row of the copy, or of the data.
    pub width: usize,
    /// Bytes from what one pixel of the output sees to what the next one does, and from one row of them to the next.
    pub pitch: usize,
    pub row_bytes: usize,
    /// Blocks of places of a plane, which have a step of channels each, and bytes from one to the next; or a single block
    /// whose places have all channels.
    pub blocks: usize,
    pub apart: usize,
    /// Remainders of row and column that each plane holds, and where it starts.
    pub planes: Vec<([usize; 2], usize)>,
    /// Rows of the copy that a plane has beyond those of the output.
    pub below: usize,
    /// Of every step.
    pub offsets: Vec<usize>,
    /// Groups of every step that count.
    pub depths: Vec<u8>,
    /// Of what a task sees of an image, and from one image to the next.
    pub bytes: usize,
    pub image: usize,
    pub seen: Seen,
    /// Places of a row overlap.
    pub overlaps: bool,
}

/// Bytes from where a row begins to what each step reads, whose taps begin so many bytes from there and which has a block of channels so
/// many farther.
fn offsets_of<F: Factor>(channels: usize, taps: &[usize], step_bytes: usize) -> Vec<usize> {
    let order = matrix::order(channels / F::STEP, taps.len());
    let offsets = order.flat_map(|(tap, steps)| steps.map(move |step| (tap, step)));
    offsets.map(|(tap, step)| taps[tap] + step * step_bytes).collect()
}

/// What steps see of a block of rows, of which so many taps see so many places.
fn seen_of<F: Factor>(channels: usize, taps: usize, places: usize) -> Seen {
    let steps = matrix::order(channels / F::STEP, taps).next().map_or(0, |(_, steps)| steps.len());
    match taps {
        0 | 1 => Seen::default(),
        _ => Seen { pass: places * steps * STEP_BYTES, whole: places * channels / F::STEP * STEP_BYTES },
    }
}

impl Copy {
    /// For tasks of so many rows of the output.
    pub fn of_taps<F: Factor>(window: &Window, rows: usize, form: Form) -> Copy {
        let channels = window.inputs.next_multiple_of(F::STEP);
        if let Form::InPlace { line, apart, image } = form {
            return Copy::in_place::<F>(window, rows, (line, apart, image));
        }
        let pixel = channels * size_of::<F>();
        let (blocks, pitch) = match form {
            Form::Pixels if pixel.is_multiple_of(CACHE_PERIOD) => (1, pixel + STEP_BYTES),
            Form::Pixels => (1, pixel),
            Form::Overlapping { pitch, .. } => (1, pitch),
            _ => (channels / F::STEP, STEP_BYTES),
        };
        let reach = |axis: usize| (window.kernel[axis].max(1) - 1) * window.dilation[axis] / window.stride[axis];
        let below = reach(1);
        let width = if let Form::Overlapping { width, .. } = form { width } else { window.out[2] + reach(2) };
        let places = (rows + below) * width;
        // With what tiles read behind the last.
        let places = if let Form::Blocks = form { rows_apart(places) } else { places + TILE };
        let plane_bytes = blocks * places * pitch;
        let apart = places * pitch;
        let step_bytes = if let Form::Blocks = form { apart } else { STEP_BYTES };
        let mut planes: Vec<([usize; 2], usize)> = Vec::new();
        let mut taps = Vec::new();
        for (y, x) in (0..window.kernel[1]).flat_map(|y| (0..window.kernel[2]).map(move |x| (y, x))) {
            let (y, x) = (y * window.dilation[1], x * window.dilation[2]);
            let remainder = [y % window.stride[1], x % window.stride[2]];
            let known = planes.iter().position(|plane| plane.0 == remainder);
            let index = known.unwrap_or(planes.len());
            if known.is_none() {
                planes.push((remainder, index * plane_bytes));
            }
            let place = y / window.stride[1] * width + x / window.stride[2];
            taps.push(planes[index].1 + place * pitch);
        }
        let offsets = offsets_of::<F>(channels, &taps, step_bytes);
        let bytes = planes.len() * plane_bytes;
        let depths = matrix::depths::<F>(window.inputs, taps.len());
        // Places of a plane that the taps see from a block: some from each of its rows, or all of them.
        let across = BLOCK + reach(2);
        let places = planes.len() * (across + below * width).min(across * (below + 1));
        let seen = seen_of::<F>(channels, taps.len(), places);
        let (row_bytes, overlaps) = (width * pitch, matches!(form, Form::Overlapping { .. }));
        Copy {
            rows,
            width,
            pitch,
            row_bytes,
            blocks,
            apart,
            planes,
            below,
            offsets,
            depths,
            bytes,
            image: bytes,
            seen,
            overlaps,
        }
    }

    /// Of data that are multiplied where they are.
    fn in_place<F: Factor>(window: &Window, rows: usize, (line, apart, image): (usize, usize, usize)) -> Copy {
        let channels = window.inputs.next_multiple_of(F::STEP);
        let blocks = channels / F::STEP;
        let reach = |axis: usize| (window.kernel[axis].max(1) - 1) * window.dilation[axis];
        let [_, down, across] = window.stride;
        let places = (0..window.kernel[1]).flat_map(|y| (0..window.kernel[2]).map(move |x| (y, x)));
        let place = |(y, x): (usize, usize)| (y * window.dilation[1] * line + x * window.dilation[2]) * STEP_BYTES;
        let taps: Vec<usize> = places.map(place).collect();
        let offsets = offsets_of::<F>(channels, &taps, apart);
        let depths = matrix::depths::<F>(window.inputs, taps.len());
        // Of each row that the taps see from a block.
        let near = (BLOCK - 1) * across + 1 + reach(2);
        let places = (near + reach(1) * line).min(near * (reach(1) + 1));
        let seen = seen_of::<F>(channels, taps.len(), places);
        let bytes = blocks * ((rows.max(1) - 1) * down + 1 + reach(1)) * line * STEP_BYTES;
        let (pitch, row_bytes, below) = (across * STEP_BYTES, down * line * STEP_BYTES, reach(1));
        let (planes, width, overlaps) = (Vec::new(), line, false);
        Copy {
            rows,
            width,
            pitch,
            row_bytes,
            blocks,
            apart,
            planes,
            below,
            offsets,
            depths,
            bytes,
            image,
            seen,
            overlaps,
        }
    }

    /// The same where a place takes what a pixel sees of a row, and they may overlap.
    pub fn of_strips<F: Factor>(window: &Window, rows: usize, overlap: bool) -> Copy {
        let ([depth, down, _], inputs) = (window.kernel, strip(window.inputs, window.kernel[2]));
        let form = if overlap {
            let pitch = window.stride[2] * window.inputs * size_of::<F>();
            // The last place ends in its row, whole groups of it.
            let beyond = inputs.next_multiple_of(F::GROUP) * size_of::<F>();
            Form::Overlapping { width: window.out[2] + beyond.div_ceil(pitch), pitch }
        } else {
            Form::Pixels
        };
        let stride = [window.stride[0], window.stride[1], 1];
        let window = Window { inputs, kernel: [depth, down, 1], stride, ..window.clone() };
        let copy = Copy::of_taps::<F>(&window, rows, form);
        // Places hold what a pixel sees themselves: no two share much.
        Copy { seen: Seen::default(), ..copy }
    }

    /// Rows of the product for so many rows of the output, each of which begins so many after the one before.
    pub fn count(&self, rows: usize, across: usize, window: &Window) -> usize {
        (rows.max(1) - 1) * across + window.out[2]
    }
}

multiversion! {
    /// Copies so many lines of a cache line each of every pixel, next to each other, to places of so many bytes. `apart` are
    /// pixels, and lines of a pixel.
    pub(super) fn copy_lines(from: &[u8], apart: (usize, usize), to: &mut [u8], place: (usize, usize)) = copy_each_line
}

#[inline(always)]
fn copy_each_line(from: &[u8], (pixel, line): (usize, usize), to: &mut [u8], (place, count): (usize, usize)) {
    for (index, place) in to.chunks_exact_mut(place).enumerate() {
        for (number, to) in place.as_chunks_mut::<LINE_BYTES>().0.iter_mut().enumerate().take(count) {
            to.copy_from_slice(&from[index * pixel + number * line..][..LINE_BYTES]);
        }
    }
}

/// Whether all factors of a copy are finite.
pub(super) fn are_finite<F: Element>(isa: Isa, factors: &[F]) -> bool {
    let exponent = match F::DTYPE {
        DType::Bf16 => 0x7f80,
        DType::F16 => 0x7c00,
        _ => return true,
    };
    let mut largest = 0;
    largest_of_bits(isa, bytemuck::cast_slice(factors), exponent, &mut largest);
    largest < exponent
}

multiversion! {
    /// The largest of numbers of which those bits alone count.
    fn largest_of_bits(numbers: &[u16], bits: u16, largest: &mut u16) = largest_of_each
}

#[inline(always)]
fn largest_of_each(numbers: &[u16], bits: u16, largest: &mut u16) {
    *largest = numbers.iter().fold(0, |largest, number| largest.max(number & bits));
}

multiversion! {
    /// Writes strips of `line`, which begin so many bytes apart and are so long, at a distance of `pitch`, and zeros
    /// behind them: weights of zero are only without effect on finite numbers.
    pub(super) fn spread(line: &[u8], strips: (usize, usize), places: &mut [u8], pitch: usize) = spread_each
}

#[inline(always)]
fn spread_each(line: &[u8], (apart, len): (usize, usize), places: &mut [u8], pitch: usize) {
    let whole = (len - 1) / STEP_BYTES * STEP_BYTES;
    let kept = matrix::kept_bytes(len - whole);
    for (index, place) in places.chunks_exact_mut(pitch).enumerate() {
        let strip = &line[index * apart..][..whole + STEP_BYTES];
        if whole > 0 {
            place[..whole].copy_from_slice(&strip[..whole]);
        }
        matrix::keep(&strip[whole..], &kept, &mut place[whole..]);
    }
}
