//! Copying elements of any datatype, which kernels tell apart by their width alone.

use super::Machine;
use crate::Isa;
use crate::vector::{MOST_LANES, Vector, on_vectors};
use halimede_tensor::View;

/// Bytes below which one thread does it all.
const PARALLEL_BYTES: usize = 128 * 1024;

/// Plain bytes of one element.
pub(super) trait Unit: Copy + Send + Sync + 'static {}
impl Unit for u8 {}
impl Unit for u16 {}
impl Unit for u32 {}
impl Unit for u64 {}
/// Complex numbers of two doubles, which are aligned to one.
impl Unit for [u64; 2] {}

/// Calls `$function::<T>` for the unit of `$width` bytes.
macro_rules! by_width {
    ($width:expr, $function:ident($($argument:expr),* $(,)?)) => {
        match $width {
            1 => $function::<u8>($($argument),*),
            2 => $function::<u16>($($argument),*),
            4 => $function::<u32>($($argument),*),
            8 => $function::<u64>($($argument),*),
            16 => $function::<[u64; 2]>($($argument),*),
            other => unreachable!("no datatype has {other} bytes"),
        }
    };
}
pub(super) use by_width;

/// Elements to read.
#[derive(Clone, Copy)]
pub(super) struct Source<T> {
    start: *const T,
    len: usize,
}

// SAFETY: a pointer to bytes that outlive the step and that nobody writes meanwhile.
unsafe impl<T: Unit> Send for Source<T> {}
// SAFETY: as above.
unsafe impl<T: Unit> Sync for Source<T> {}

impl<T: Unit> Source<T> {
    pub fn new(view: View<'_>) -> Source<T> {
        assert!(view.as_ptr().cast::<T>().is_aligned());
        Source { start: view.as_ptr().cast(), len: view.len() / size_of::<T>() }
    }

    /// # Panics
    /// Outside the input.
    #[inline(always)]
    pub fn at(self, index: usize) -> T {
        assert!(index < self.len);
        // SAFETY: inside the input, which is initialised.
        unsafe { *self.start.add(index) }
    }
}

/// Elements to write, each by one part of a loop.
#[derive(Clone, Copy)]
pub(super) struct Target<T> {
    start: *mut T,
    len: usize,
}

// SAFETY: parts of a loop write different elements (the duty of every caller below).
unsafe impl<T: Unit> Send for Target<T> {}
// SAFETY: as above.
unsafe impl<T: Unit> Sync for Target<T> {}

/// Side of what [`Target::turn_all`] turns in registers, of the widest ones.
const SQUARE: usize = MOST_LANES;

/// Rows of numbers, whole squares of them, and where their columns go as rows. Distances are in numbers.
struct Squares {
    from: *const f32,
    from_apart: usize,
    to: *mut f32,
    to_apart: usize,
    /// Rows and columns of what is written.
    size: (usize, usize),
}

on_vectors! {
    /// Both ends of the squares are valid, and nobody else touches what is written.
    fn turn_squares(squares: &Squares) = turn_each
}

/// # Safety
/// As [`Vector`], and what `turn_squares` says.
#[inline(always)]
unsafe fn turn_each<V: Vector>(squares: &Squares) {
    let &Squares { from, from_apart, to, to_apart, size: (height, width) } = squares;
    for top in (0..height).step_by(SQUARE) {
        for left in (0..width).step_by(SQUARE) {
            for row in (top..top + SQUARE).step_by(V::LANES) {
                for column in (left..left + SQUARE).step_by(V::LANES) {
                    // SAFETY: the caller's promise.
                    unsafe {
                        let (from, to) = (from.add(column * from_apart + row), to.add(row * to_apart + column));
                        V::turn_square(from, from_apart, to, to_apart);
                    }
                }
            }
        }
    }
}

impl<T: Unit> Target<T> {
    pub fn new(view: View<'_>) -> Target<T> {
        assert!(view.as_ptr().cast::<T>().is_aligned());
        Target { start: view.as_ptr().cast(), len: view.len() / size_of::<T>() }
    }

    pub fn len(self) -> usize {
        self.len
    }

    /// Whether an input lies in the output already, from this element on.
    pub fn holds(self, index: usize, source: Source<T>) -> bool {
        self.start.wrapping_add(index).cast_const() == source.start
    }

    /// Writes one element.
    ///
    /// # Panics
    /// Outside the output.
    #[inline(always)]
    pub fn set(self, index: usize, value: T) {
        assert!(index < self.len);
        // SAFETY: inside the output; no other part writes or reads this element.
        unsafe { *self.start.add(index) = value };
    }

    /// Writes `count` elements from one place on.
    ///
    /// # Panics
    /// Outside the output or the input.
    #[inline(always)]
    pub fn copy(self, index: usize, source: Source<T>, from: usize, count: usize) {
        assert!(index + count <= self.len && from + count <= source.len);
        // SAFETY: both ranges lie inside; an input overlaps an output only where a kernel says so, and
        // then element for element at the same place.
        unsafe { std::ptr::copy(source.start.add(from), self.start.add(index), count) };
    }

    /// The same, faster for a few elements: a call would take longer than copying them does.
    ///
    /// # Panics
    /// As [`Target::copy`].
    #[inline(always)]
    pub fn copy_few(self, index: usize, source: Source<T>, from: usize, count: usize) {
        const FEW: usize = 4;
        if count > FEW {
            return self.copy(index, source, from, count);
        }
        assert!(index + count <= self.len && from + count <= source.len);
        for at in 0..count {
            // SAFETY: inside (just checked), as for `copy`; where both overlap, at the same place.
            unsafe { *self.start.add(index + at) = *source.start.add(from + at) };
        }
    }

    /// Writes `height` rows of `width` elements from one place on, `to.1` elements apart: columns of the input,
    /// from `from.0` on and `from.1` apart.
    ///
    /// # Panics
    /// Outside the output or the input.
    #[inline(always)]
    pub fn turn(self, to: (usize, usize), source: Source<T>, from: (usize, usize), (height, width): (usize, usize)) {
        if height == 0 || width == 0 {
            return;
        }
        assert!(to.0 + (height - 1) * to.1 + width <= self.len);
        assert!(from.0 + (width - 1) * from.1 + height <= source.len);
        for x in 0..width {
            // SAFETY: the corners lie inside (just checked); no other part writes or reads these elements.
            unsafe {
                let (first, column) = (self.start.add(to.0 + x), source.start.add(from.0 + x * from.1));
                (0..height).for_each(|y| *first.add(y * to.1) = *column.add(y));
            }
        }
    }

    /// The same, of squares in registers where elements have 32 bits: each line of both is touched once, so that rows may lie as far apart
    /// as makes them displace each other.
    ///
    /// # Panics
    /// Outside the output or the input.
    pub fn turn_all(self, isa: Isa, to: (usize, usize), source: Source<T>, from: (usize, usize), size: (usize, usize)) {
        let (height, width) = size;
        let mut turned = (0, 0);
        if size_of::<T>() == size_of::<f32>() && height > 0 && width > 0 {
            assert!(to.0 + (height - 1) * to.1 + width <= self.len);
            assert!(from.0 + (width - 1) * from.1 + height <= source.len);
            turned = (height / SQUARE * SQUARE, width / SQUARE * SQUARE);
            let start = |from: *const T| from.cast::<f32>();
            let squares = Squares {
                from: start(source.start.wrapping_add(from.0)),
                from_apart: from.1,
                to: start(self.start.wrapping_add(to.0)).cast_mut(),
                to_apart: to.1,
                size: turned,
            };
            // The corners lie inside (just checked); no other part writes or reads these elements.
            turn_squares(isa, &squares);
        }
        // What is left below, and to the right of all that was turned.
        let below = height - turned.0;
        self.turn((to.0 + turned.0 * to.1, to.1), source, (from.0 + turned.0, from.1), (below, width));
        let right = width - turned.1;
        self.turn((to.0 + turned.1, to.1), source, (from.0 + turned.1 * from.1, from.1), (turned.0, right));
    }

    /// Writes `count` rows of `N` elements that follow each other from `to` on: columns of the input, from `from.0` on
    /// and `from.1` apart.
    ///
    /// # Panics
    /// Outside the output or the input.
    #[inline(always)]
    pub fn interleave<const N: usize>(self, to: usize, source: Source<T>, from: (usize, usize), count: usize) {
        assert!(to + count * N <= self.len && from.0 + (N - 1) * from.1 + count <= source.len);
        // SAFETY: inside (just checked); no other part writes or reads these elements.
        let (rows, columns) = unsafe {
            let rows = std::slice::from_raw_parts_mut(self.start.add(to).cast::<[T; N]>(), count);
            let column = |index| std::slice::from_raw_parts(source.start.add(from.0 + index * from.1), count);
            (rows, std::array::from_fn::<_, N, _>(column))
        };
        // Counted: what iterators hand on may be compiled apart (`docs/benchmarks/gaps-z.md#closures-over-vectors`).
        for (at, row) in rows.iter_mut().enumerate() {
            for column in 0..N {
                row[column] = columns[column][at];
            }
        }
    }

    /// Writes one element `count` times.
    ///
    /// # Panics
    /// Outside the output.
    #[inline(always)]
    pub fn fill(self, index: usize, count: usize, value: T) {
        assert!(index + count <= self.len);
        // SAFETY: inside the output, which no other part writes or reads here.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(index), count) }.fill(value);
    }
}

/// Splits `items` that move `bytes` in all over the pool: `work(range)` for each part.
pub(super) fn split(machine: &Machine, items: usize, bytes: usize, work: &(dyn Fn(std::ops::Range<usize>) + Sync)) {
    let parts = if bytes < PARALLEL_BYTES { 1 } else { (machine.pool.threads() * 2).min(items) };
    if parts <= 1 {
        return work(0..items);
    }
    machine.pool.run(parts, &|part| work(part * items / parts..(part + 1) * items / parts));
}

/// A flat index of `shape` as the sum of `stride · index` over its axes.
#[inline(always)]
pub(super) fn offset(mut flat: usize, shape: &[usize], strides: &[usize]) -> usize {
    let mut sum = 0;
    for axis in (0..shape.len()).rev() {
        sum += flat % shape[axis] * strides[axis];
        flat /= shape[axis];
    }
    sum
}
