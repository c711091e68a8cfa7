//! Pooling on data whose channels lie last: a few registers of neighbouring channels go over all taps of a pixel,
//! and are written once.

use super::covered;
use crate::isa::multiversion;
use crate::kernels::Machine;
use crate::kernels::conv::window::Window;
use crate::kernels::lines::{Images, Raster};
use crate::kernels::rows::part_mut;
use crate::real::Real;
use crate::vector::{Vector, on_vectors};
use half::bf16;
use halimede_compute::{Arguments, Step};
use halimede_graph::ops::PoolKind;
use halimede_tensor::{DType, Element, View};
use std::ops::Range;

/// Pairs of registers that go over the taps together.
const PAIRS: usize = 2;
/// Bytes that do so.
const BYTES: usize = 64;
/// Neighbouring pixels that look for their largest numbers together: what several see is read once.
const PIXELS: usize = 4;

pub(super) struct PixelsStep {
    pub dtype: DType,
    pub kind: PoolKind,
    /// Border after each axis.
    pub after: [usize; 3],
    pub window: Window,
    /// Where images of the data and of the result begin.
    pub images: [Images; 2],
    /// Of a result whose images have a border, and how many share a line of channels.
    pub bordered: Option<(Raster, usize)>,
    pub machine: Machine,
}

/// What the window of an output pixel sees of an image.
#[derive(Clone, Copy)]
struct Seen {
    /// The first element that lies inside.
    first: usize,
    /// Taps that lie inside, down and across, and elements from one to the next.
    count: [usize; 2],
    apart: [usize; 2],
}

impl Seen {
    /// Where each tap begins.
    #[inline(always)]
    fn places(self) -> impl Iterator<Item = usize> {
        let Seen { first, count: [rows, columns], apart: [down, across] } = self;
        (0..rows).flat_map(move |row| (0..columns).map(move |column| first + row * down + column * across))
    }

    fn is_empty(self) -> bool {
        self.count[0] * self.count[1] == 0
    }
}

impl PixelsStep {
    /// The first of the data that a window sees along an axis, and how many taps lie inside.
    fn inside(&self, axis: usize, place: usize) -> (usize, usize) {
        let window = &self.window;
        let (size, apart) = (window.x[axis] as isize, window.dilation[axis]);
        // A division by something known is none.
        let taps = |length: isize| match (length.max(0).unsigned_abs(), apart) {
            (length, 1) => length,
            (length, apart) => length.div_ceil(apart),
        };
        // Where the window begins in the data.
        let start = (place * window.stride[axis]) as isize - window.before[axis];
        let (first, end) = (taps(-start), taps(size - start).min(window.kernel[axis]));
        ((start + (first * apart) as isize).max(0) as usize, end.saturating_sub(first))
    }

    /// What is seen of the rows that [`PixelsStep::inside`] gives.
    fn seen(&self, (y, rows): (usize, usize), column: usize) -> Seen {
        let (window, channels) = (&self.window, self.window.groups);
        let (x, columns) = self.inside(2, column);
        let line = self.images[0].row;
        let apart = [window.dilation[1] * line, window.dilation[2] * channels];
        Seen { first: y * line + x * channels, count: [rows, columns], apart }
    }

    /// Runs `pool` for every row of output pixels: with an image, the row's number and its elements.
    fn each_row<T: Element>(&self, arguments: &Arguments<'_>, pool: impl Fn(&[T], usize, &mut [T]) + Sync) {
        let (window, row_len) = (&self.window, self.window.out[2] * self.window.groups);
        // Of an image, up to its last pixel.
        let [rows, columns] = [window.x[1], window.x[2]];
        let image_len = rows.checked_sub(1).map_or(0, |last| last * self.images[0].row + columns * window.groups);
        self.machine.pool.run(window.batch * window.out[1], &|task| {
            let (image, row) = (task / window.out[1], task % window.out[1]);
            let [from, to] = self.images.map(|images| images.start(image));
            // SAFETY: inputs are not written during the step; each part has a row of the output, and the first of an image what is
            // around it.
            let (x, line) = unsafe {
                if let (0, Some((raster, count))) = (row, &self.bordered) {
                    let number = image / count;
                    raster.clear_border::<T>(arguments.outputs[0], image % count, number..number + 1);
                }
                let x = arguments.inputs[0].unwrap_or(View::empty()).slice::<T>();
                (x, part_mut::<T>(arguments.outputs[0], to + row * self.images[1].row, row_len))
            };
            pool(&x[from..][..image_len], row, line);
        });
    }
}

impl Step for PixelsStep {
    fn run(&self, arguments: &Arguments<'_>) {
        let isa = self.machine.isa;
        match self.dtype {
            DType::F32 => self.each_row::<f32>(arguments, |x, row, line| pool_row(isa, self, x, row, line)),
            DType::Bf16 => self.each_row::<bf16>(arguments, |x, row, line| pool_narrow_row(isa, self, x, row, line)),
            _ => {
                // The bits of bytes with a sign, the uppermost of them turned round, are in the order of those without.
                let sign = if self.dtype == DType::I8 { 0x80 } else { 0 };
                self.each_row::<u8>(arguments, |x, row, line| max_bytes(isa, self, x, row, sign, line));
            }
        }
    }
}

multiversion! {
    /// One row of output pixels of bytes, of which the largest is wanted after `sign` was turned round.
    fn max_bytes(step: &PixelsStep, x: &[u8], row: usize, sign: u8, line: &mut [u8]) = max_of_bytes
}

#[inline(always)]
fn max_of_bytes(step: &PixelsStep, x: &[u8], row: usize, sign: u8, line: &mut [u8]) {
    let rows = step.inside(1, row);
    for (column, out) in line.chunks_exact_mut(step.window.groups.max(1)).enumerate() {
        let seen = step.seen(rows, column);
        let (wide, rest) = out.as_chunks_mut::<BYTES>();
        for (index, out) in wide.iter_mut().enumerate() {
            *out = most_bytes(x, index * BYTES, seen, sign);
        }
        let from = wide.len() * BYTES;
        for (index, out) in rest.iter_mut().enumerate() {
            [*out] = most_bytes(x, from + index, seen, sign);
        }
    }
}

/// Of `N` neighbouring channels.
#[inline(always)]
fn most_bytes<const N: usize>(x: &[u8], channel: usize, seen: Seen, sign: u8) -> [u8; N] {
    let mut most = [0; N];
    // Counted: of an iterator over all places the bytes would go through memory from tap to tap.
    for row in 0..seen.count[0] {
        for column in 0..seen.count[1] {
            let place = seen.first + row * seen.apart[0] + column * seen.apart[1] + channel;
            let x: &[u8; N] = x[place..].first_chunk().expect("a window inside its image");
            for at in 0..N {
                most[at] = most[at].max(x[at] ^ sign);
            }
        }
    }
    for at in 0..N {
        most[at] ^= sign;
    }
    most
}

on_vectors! {
    /// One row of output pixels.
    fn pool_row(step: &PixelsStep, x: &[f32], row: usize, line: &mut [f32]) = pool_floats
}

on_vectors! {
    /// The same of data in bf16.
    fn pool_narrow_row(step: &PixelsStep, x: &[bf16], row: usize, line: &mut [bf16]) = pool_narrow
}

/// # Safety
/// As [`Vector`].
#[inline(always)]
unsafe fn pool_floats<V: Vector>(step: &PixelsStep, x: &[f32], row: usize, line: &mut [f32]) {
    // SAFETY: the caller's promise.
    unsafe { pool::<V, f32>(step, x, row, line) }
}

/// # Safety
/// As [`Vector`].
#[inline(always)]
unsafe fn pool_narrow<V: Vector>(step: &PixelsStep, x: &[bf16], row: usize, line: &mut [bf16]) {
    // SAFETY: the caller's promise.
    unsafe { pool::<V, bf16>(step, x, row, line) }
}

/// # Safety
/// As [`Vector`].
#[inline(always)]
unsafe fn pool<V: Vector, T: Real>(step: &PixelsStep, x: &[T], row: usize, line: &mut [T]) {
    let rows = step.inside(1, row);
    // SAFETY: the caller's promise.
    let together = unsafe { largest_together::<V, T>(step, x, rows, line) };
    for (column, out) in line.chunks_exact_mut(step.window.groups.max(1)).enumerate() {
        if together.contains(&column) {
            continue;
        }
        let seen = step.seen(rows, column);
        // SAFETY: the caller's promise.
        unsafe {
            match step.kind {
                PoolKind::Max { .. } if seen.is_empty() => out.fill(T::nearest(f32::NEG_INFINITY)),
                PoolKind::Max { .. } => channels::<V, T, true>(x, seen, 1.0, out),
                PoolKind::Average { count_include_pad } => {
                    let inside = seen.count[0] * seen.count[1];
                    let border = || covered(&step.window, step.after, [0, row, column]);
                    let count = if count_include_pad && inside > 0 { border() } else { inside };
                    channels::<V, T, false>(x, seen, 1.0 / count.max(1) as f32, out);
                }
                PoolKind::Lp { p } => {
                    for (channel, out) in out.iter_mut().enumerate() {
                        let powers = seen.places().map(|place| x[place + channel].widen().abs().powi(p as i32));
                        *out = T::nearest(powers.sum::<f32>().powf(1.0 / p as f32));
                    }
                }
            }
        }
    }
}

/// The columns of a row of output pixels that were written, all of whose taps lie inside of the image: of the largest numbers of
/// windows that are as wide and as far apart as those of most models.
///
/// # Safety
/// As [`Vector`].
#[inline(always)]
unsafe fn largest_together<V: Vector, T: Real>(
    step: &PixelsStep,
    x: &[T],
    rows: (usize, usize),
    line: &mut [T],
) -> Range<usize> {
    let window = &step.window;
    let is_max = matches!(step.kind, PoolKind::Max { .. }) && window.dilation[2] == 1 && rows.1 > 0;
    // SAFETY: the caller's promise.
    unsafe {
        match (window.kernel[2], window.stride[2]) {
            (3, 2) if is_max => neighbours::<V, T, 3, 2>(step, x, rows, line),
            (2, 2) if is_max => neighbours::<V, T, 2, 2>(step, x, rows, line),
            (3, 1) if is_max => neighbours::<V, T, 3, 1>(step, x, rows, line),
            _ => 0..0,
        }
    }
}

/// The same of windows of `TAPS` columns, `STRIDE` columns apart. Some row is inside.
///
/// # Safety
/// As [`Vector`].
#[inline(always)]
unsafe fn neighbours<V: Vector, T: Real, const TAPS: usize, const STRIDE: usize>(
    step: &PixelsStep,
    x: &[T],
    (y, rows): (usize, usize),
    line: &mut [T],
) -> Range<usize> {
    let (window, channels, len) = (&step.window, step.window.groups, 2 * V::LANES);
    let (row, down) = (step.images[0].row, window.dilation[1] * step.images[0].row);
    let all_seen = (PIXELS - 1) * STRIDE + TAPS;
    // The first column whose window begins inside, and as many as end there.
    let begin = window.before[2].max(0).unsigned_abs().div_ceil(STRIDE);
    let first = (begin * STRIDE).wrapping_add_signed(-window.before[2]);
    let inside = (window.x[2] + STRIDE).saturating_sub(first + TAPS) / STRIDE;
    let count = inside.min(window.out[2].saturating_sub(begin)) / PIXELS * PIXELS;
    if count == 0 || !channels.is_multiple_of(len) {
        return 0..0;
    }
    let last = (count - PIXELS) * STRIDE + all_seen;
    assert!(y * row + (rows - 1) * down + (first + last) * channels <= x.len(), "windows beyond their image");
    assert!((begin + count) * channels <= line.len());
    for column in (0..count).step_by(PIXELS) {
        for channel in (0..channels).step_by(len) {
            let from = y * row + (first + column * STRIDE) * channels + channel;
            // SAFETY: the caller's promise; all that these windows see, and their results, lie inside (just checked).
            unsafe {
                let from = x.as_ptr().add(from);
                // The first number of each stands even where it is no larger than any other.
                let mut most = [[V::splat(0.0); 2]; PIXELS];
                for (pixel, most) in most.iter_mut().enumerate() {
                    *most = T::load_pair(from.add(pixel * STRIDE * channels));
                }
                for tap in 0..rows {
                    let from = from.add(tap * down);
                    for seen in 0..all_seen {
                        let [a, b]: [V; 2] = T::load_pair(from.add(seen * channels));
                        for pixel in 0..PIXELS {
                            if seen >= pixel * STRIDE && seen < pixel * STRIDE + TAPS {
                                let [low, high] = most[pixel];
                                most[pixel] = [low.at_least(a), high.at_least(b)];
                            }
                        }
                    }
                }
                let to = line.as_mut_ptr().add((begin + column) * channels + channel);
                for (pixel, most) in most.into_iter().enumerate() {
                    T::store_pair(most, to.add(pixel * channels));
                }
            }
        }
    }
    begin..begin + count
}

/// The largest number that is seen of each channel, or the sum of them times a factor.
///
/// # Safety
/// As [`Vector`].
#[inline(always)]
unsafe fn channels<V: Vector, T: Real, const MAX: bool>(x: &[T], seen: Seen, factor: f32, out: &mut [T]) {
    let last = seen.places().last().unwrap_or(seen.first);
    assert!(seen.is_empty() || last + out.len() <= x.len(), "a window beyond its image");
    let (from, to) = (x.as_ptr(), out.as_mut_ptr());
    let mut channel = 0;
    // SAFETY: the caller's promise; all taps of these channels lie inside (just checked).
    unsafe {
        while channel + PAIRS * 2 * V::LANES <= out.len() {
            pairs::<V, T, MAX, PAIRS>(from.add(channel), seen, factor, to.add(channel));
            channel += PAIRS * 2 * V::LANES;
        }
        // A line of a blocked value, in the widest registers.
        while channel + 2 * V::LANES <= out.len() {
            pairs::<V, T, MAX, 1>(from.add(channel), seen, factor, to.add(channel));
            channel += 2 * V::LANES;
        }
        while channel + V::LANES <= out.len() {
            one::<V, T, MAX>(from.add(channel), seen, factor, to.add(channel));
            channel += V::LANES;
        }
    }
    for (channel, out) in out.iter_mut().enumerate().skip(channel) {
        let numbers = seen.places().map(|place| x[place + channel].widen());
        *out = T::nearest(match MAX {
            true => numbers.reduce(|most, x| if most < x { x } else { most }).unwrap_or(f32::NEG_INFINITY),
            false => numbers.sum::<f32>() * factor,
        });
    }
}

/// The same of the channels of one register.
///
/// # Safety
/// As [`pairs`].
#[inline(always)]
unsafe fn one<V: Vector, T: Real, const MAX: bool>(from: *const T, seen: Seen, factor: f32, to: *mut T) {
    // SAFETY: the caller's promise.
    unsafe {
        let mut number = if MAX { T::load(from.add(seen.first)) } else { V::splat(0.0) };
        for place in seen.places() {
            let x = T::load(from.add(place));
            number = if MAX { number.at_least(x) } else { number.plus(x) };
        }
        T::store(if MAX { number } else { number.times(V::splat(factor)) }, to);
    }
}

/// The same of the channels of `N` pairs of registers.
///
/// # Safety
/// As [`Vector`]; the channels can be read for every tap.
#[inline(always)]
unsafe fn pairs<V: Vector, T: Real, const MAX: bool, const N: usize>(
    from: *const T,
    seen: Seen,
    factor: f32,
    to: *mut T,
) {
    // SAFETY: the caller's promise.
    unsafe {
        let mut numbers = [[V::splat(0.0); 2]; N];
        if MAX {
            // The first element stands even where it is no larger than any other.
            for (index, pair) in numbers.iter_mut().enumerate() {
                *pair = T::load_pair(from.add(seen.first + index * 2 * V::LANES));
            }
        }
        for row in 0..seen.count[0] {
            for column in 0..seen.count[1] {
                let from = from.add(seen.first + row * seen.apart[0] + column * seen.apart[1]);
                for (index, [low, high]) in numbers.iter_mut().enumerate() {
                    let [a, b]: [V; 2] = T::load_pair(from.add(index * 2 * V::LANES));
                    [*low, *high] = match MAX {
                        true => [low.at_least(a), high.at_least(b)],
                        false => [low.plus(a), high.plus(b)],
                    };
                }
            }
        }
        let factor = V::splat(factor);
        for (index, [low, high]) in numbers.into_iter().enumerate() {
            let pair = if MAX { [low, high] } else { [low.times(factor), high.times(factor)] };
            T::store_pair(pair, to.add(index * 2 * V::LANES));
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::kernels::tests::{check, floats};
    use halimede_graph::Op;
    use halimede_graph::ops::{Padding, Pool, PoolKind};
    use halimede_tensor::{CastOptions, DType};

    #[test]
    fn the_largest_of_neighbouring_pixels() {
        // Kernel, stride and border on both sides of each axis; widths that blocks of pixels leave over, fill, and do not reach.
        let cases: &[(i64, i64, [i64; 4])] = &[
            (3, 2, [1, 1, 1, 1]),
            (3, 2, [0, 0, 0, 0]),
            (3, 2, [0, 0, 1, 1]),
            (2, 2, [0, 0, 0, 0]),
            (2, 2, [1, 1, 0, 0]),
            (3, 1, [1, 1, 1, 1]),
            (3, 1, [1, 2, 2, 1]),
        ];
        for &(kernel, stride, padding) in cases {
            for (width, channels) in [(5, 64), (8, 32), (9, 96), (17, 64), (24, 32), (27, 36)] {
                let pool = Op::Pool(Pool {
                    kind: PoolKind::Max { column_major: false },
                    kernel: [kernel as usize; 2].as_slice().into(),
                    strides: [stride as usize; 2].as_slice().into(),
                    dilations: [1, 1].as_slice().into(),
                    padding: Padding::Explicit(padding.as_slice().into()),
                    ceil_mode: padding[0] == 0,
                    outputs: 1,
                    channels_last: true,
                });
                let pixels = floats(&[2, 7, width, channels], 1);
                let narrow = pixels.cast(DType::Bf16, CastOptions::default()).unwrap();
                check(pool.clone(), &[Some(pixels)], &[], 0.0);
                check(pool, &[Some(narrow)], &[], 0.0);
            }
        }
    }
}
