//! Rows of numbers that are reduced to one, column by column, as the mean of an image whose channels lie last.
//!
//! Threads take groups of rows: each reads the pixels that it has written itself in the step before, and their lines stay its own for the
//! step behind. Only where there are too few groups they take some of the columns. What is added to what does not depend on how many there
//! are.

use super::{PARALLEL_ELEMENTS, ReduceKind};
use crate::Isa;
use crate::isa::multiversion;
use crate::kernels::Machine;
use crate::kernels::cuts::{Shares, TASKS_OF_THREAD};
use crate::kernels::rows::{Rows, part_mut};
use crate::kernels::softmax::{larger, smaller};
use crate::real::Real;
use crate::vector::{MOST_LANES, Vector, on_vectors};
use half::bf16;
use halimede_compute::Arguments;
use halimede_tensor::{Element, View};
use std::ops::Range;

/// Columns that are reduced together, and multiples of which threads take.
const LANES: usize = 64;
/// Columns whose totals are kept aside where there is one group of rows.
const AT_ONCE: usize = 8 * LANES;
/// Rows that are summed before their sum is added to the others: an error grows with the length of a
/// sum, so there are many short ones.
const SHORT: usize = 64;
/// Elements of a group of rows, at least.
const GROUP_ELEMENTS: usize = 8 * 1024;

/// Columns of floats, or of numbers of 16 bits.
pub(super) struct Columns {
    pub kind: ReduceKind,
    pub rows: Rows,
    pub machine: Machine,
}

impl Columns {
    /// Rows of a group: as many blocks of [`SHORT`] as make [`GROUP_ELEMENTS`].
    fn group(&self) -> usize {
        GROUP_ELEMENTS.div_ceil(SHORT * self.rows.inner.max(1)) * SHORT
    }

    fn groups(&self) -> usize {
        self.rows.length.div_ceil(self.group())
    }

    /// Bytes of the totals of all groups of a plane, where there are several, and of all planes.
    pub fn workspace(&self) -> usize {
        match self.groups() {
            1 => 0,
            groups => self.rows.outer * groups * self.rows.inner * size_of::<f32>(),
        }
    }

    /// Totals of a group of rows, from one of its columns on.
    ///
    /// # Safety
    /// Nobody else uses them meanwhile.
    unsafe fn totals<'a>(&self, workspace: View<'a>, group: usize, columns: Range<usize>) -> &'a mut [f32] {
        // SAFETY: the caller's promise.
        unsafe { part_mut(workspace, group * self.rows.inner + columns.start, columns.len()) }
    }

    pub fn run<T: Data>(&self, arguments: &Arguments<'_>) {
        let Some(input) = arguments.inputs[0] else { return };
        // SAFETY: inputs are not written during the step.
        let x = unsafe { input.slice::<T>() };
        let Rows { outer: planes, length, inner } = self.rows;
        if x.is_empty() {
            return;
        }
        assert!(arguments.workspace.len() >= self.workspace());
        let (group, groups, workspace) = (self.group(), self.groups(), arguments.workspace);
        let (pool, tasks) = (&self.machine.pool, TASKS_OF_THREAD * self.machine.pool.threads());
        let is_small = x.len() < PARALLEL_ELEMENTS;
        let ranges = Shares::new(inner, LANES, if is_small { 1 } else { tasks.div_ceil(planes * groups) });
        let each = |number: usize| {
            let (number, columns) = (number / ranges.count, ranges.range(number % ranges.count));
            let (plane, first) = (number / groups, number % groups * group);
            let last = length.min(first + group) - 1;
            let seen = |columns: &Range<usize>| {
                let [first, last] = [first, last].map(|row| (plane * length + row) * inner);
                &x[first + columns.start..last + columns.end]
            };
            if groups > 1 {
                // SAFETY: each group of rows has totals of its own, and each task some of their columns.
                let totals = unsafe { self.totals(workspace, number, columns.clone()) };
                return self.reduce(seen(&columns), totals);
            }
            for start in columns.clone().step_by(AT_ONCE) {
                let columns = start..columns.end.min(start + AT_ONCE);
                let mut totals = [0.0; AT_ONCE];
                let totals = &mut totals[..columns.len()];
                self.reduce(seen(&columns), totals);
                self.end::<T>(arguments, plane, columns, totals);
            }
        };
        let count = planes * groups * ranges.count;
        let shares = Shares::new(count, 1, if is_small { 1 } else { TASKS_OF_THREAD * tasks });
        pool.run(shares.count, &|share| shares.range(share).for_each(each));
        if groups == 1 {
            return;
        }
        let ended = if planes * groups * inner < PARALLEL_ELEMENTS { 1 } else { planes };
        let shares = Shares::new(planes, 1, ended);
        pool.run(shares.count, &|share| {
            for plane in shares.range(share) {
                // SAFETY: all groups are done, and each plane is one task's.
                let totals = unsafe { self.totals(workspace, plane * groups, 0..groups * inner) };
                let (totals, others) = totals.split_at_mut(inner);
                others.chunks_exact(inner).for_each(|other| merge(self.kind, totals, other));
                self.end::<T>(arguments, plane, 0..inner, totals);
            }
        });
    }

    /// Reduces the columns of rows that lie `inner` apart to as many totals.
    fn reduce<T: Data>(&self, x: &[T], totals: &mut [f32]) {
        let (isa, apart) = (self.machine.isa, self.rows.inner);
        totals.fill(neutral(self.kind));
        for block in x.chunks(SHORT * apart) {
            match self.kind {
                ReduceKind::Sum | ReduceKind::Mean => T::add_columns(isa, block, apart, totals),
                ReduceKind::SumSquare | ReduceKind::L2 => T::add_squares(isa, block, apart, totals),
                kind => gather_columns(isa, kind, block, apart, totals),
            }
        }
    }

    /// Makes results of the totals of some columns of all rows of a plane.
    fn end<T: Data>(&self, arguments: &Arguments<'_>, plane: usize, columns: Range<usize>, totals: &mut [f32]) {
        match self.kind {
            ReduceKind::Mean => totals.iter_mut().for_each(|total| *total /= self.rows.length as f32),
            ReduceKind::L2 => totals.iter_mut().for_each(|total| *total = total.sqrt()),
            _ => {}
        }
        // SAFETY: each task has columns of its own.
        let out =
            unsafe { part_mut::<T>(arguments.outputs[0], plane * self.rows.inner + columns.start, columns.len()) };
        T::narrow_all(self.machine.isa, totals, out);
    }
}

/// What a reduction of nothing gives.
fn neutral(kind: ReduceKind) -> f32 {
    match kind {
        ReduceKind::Max => f32::NEG_INFINITY,
        ReduceKind::Min => f32::INFINITY,
        _ => 0.0,
    }
}

/// Adds what was gathered of some rows to what was of others, or takes the larger or smaller.
#[inline(always)]
fn merge(kind: ReduceKind, totals: &mut [f32], parts: &[f32]) {
    for (total, &part) in totals.iter_mut().zip(parts) {
        *total = match kind {
            ReduceKind::Max => larger(*total, part),
            ReduceKind::Min => smaller(*total, part),
            _ => *total + part,
        };
    }
}

multiversion! {
    /// Gathers the largest, smallest or absolute numbers of the columns of some rows.
    fn gather_columns<T: Real>(kind: ReduceKind, x: &[T], apart: usize, totals: &mut [f32]) = gathered
}

#[inline(always)]
fn gathered<T: Real>(kind: ReduceKind, x: &[T], apart: usize, totals: &mut [f32]) {
    for (block, totals) in totals.chunks_mut(LANES).enumerate() {
        let mut part = [neutral(kind); LANES];
        let part = &mut part[..totals.len()];
        for row in x.chunks(apart) {
            let pairs = part.iter_mut().zip(row[block * LANES..].iter().map(|x| x.widen()));
            match kind {
                ReduceKind::Max => pairs.for_each(|(sum, x)| *sum = larger(*sum, x)),
                ReduceKind::Min => pairs.for_each(|(sum, x)| *sum = smaller(*sum, x)),
                _ => pairs.for_each(|(sum, x)| *sum += x.abs()),
            }
        }
        merge(kind, totals, part);
    }
}

/// A datatype whose columns are summed by vectors.
pub(super) trait Data: Real + Element {
    /// Adds the columns of some rows, which lie `apart` numbers from each other, to as many totals.
    fn add_columns(isa: Isa, x: &[Self], apart: usize, totals: &mut [f32]);
    /// The same of the squares of all numbers.
    fn add_squares(isa: Isa, x: &[Self], apart: usize, totals: &mut [f32]);
}

macro_rules! summed_by_vectors {
    ($($type:ident: $sums:ident = $sums_body:ident, $squares:ident = $squares_body:ident;)*) => {$(
        on_vectors! {
            fn $sums(x: &[$type], apart: usize, totals: &mut [f32]) = $sums_body
        }
        on_vectors! {
            fn $squares(x: &[$type], apart: usize, totals: &mut [f32]) = $squares_body
        }
        /// # Safety
        /// As [`Vector`].
        #[inline(always)]
        unsafe fn $sums_body<V: Vector>(x: &[$type], apart: usize, totals: &mut [f32]) {
            // SAFETY: the caller's promise.
            unsafe { sum_columns::<V, $type, false>(x, apart, totals) }
        }
        /// # Safety
        /// As [`Vector`].
        #[inline(always)]
        unsafe fn $squares_body<V: Vector>(x: &[$type], apart: usize, totals: &mut [f32]) {
            // SAFETY: the caller's promise.
            unsafe { sum_columns::<V, $type, true>(x, apart, totals) }
        }
        impl Data for $type {
            fn add_columns(isa: Isa, x: &[$type], apart: usize, totals: &mut [f32]) {
                $sums(isa, x, apart, totals);
            }
            fn add_squares(isa: Isa, x: &[$type], apart: usize, totals: &mut [f32]) {
                $squares(isa, x, apart, totals);
            }
        }
    )*};
}
summed_by_vectors! {
    f32: add_floats = floats, add_squares_of_floats = squares_of_floats;
    bf16: add_halves = halves, add_squares_of_halves = squares_of_halves;
}

/// Rows of numbers, from the first one of interest on.
#[derive(Clone, Copy)]
struct Lying<T> {
    from: *const T,
    apart: usize,
    rows: usize,
}

/// # Safety
/// As [`Vector`].
#[inline(always)]
unsafe fn sum_columns<V: Vector, T: Real, const SQUARES: bool>(x: &[T], apart: usize, totals: &mut [f32]) {
    let (rows, width) = (x.len().div_ceil(apart), totals.len());
    assert!(rows > 0 && (rows - 1) * apart + width <= x.len(), "rows that have as many columns as there are totals");
    let (from, to) = (x.as_ptr(), totals.as_mut_ptr());
    let mut column = 0;
    // SAFETY: the caller's promise; these columns of all rows lie in `x` (just checked), and as many totals.
    unsafe {
        let lying = |column: usize| Lying { from: from.add(column), apart, rows };
        while column + 4 * V::LANES <= width {
            add_rows::<V, T, 4, 1, SQUARES>(lying(column), to.add(column));
            column += 4 * V::LANES;
        }
        if column + 2 * V::LANES <= width {
            add_rows::<V, T, 2, 2, SQUARES>(lying(column), to.add(column));
            column += 2 * V::LANES;
        }
        if column + V::LANES <= width {
            add_rows::<V, T, 1, 4, SQUARES>(lying(column), to.add(column));
            column += V::LANES;
        }
    }
    if column < width {
        let mut sums = [0.0; MOST_LANES];
        let sums = &mut sums[..width - column];
        for row in x.chunks(apart) {
            for (sum, x) in sums.iter_mut().zip(&row[column..]) {
                *sum += if SQUARES { x.widen() * x.widen() } else { x.widen() };
            }
        }
        merge(ReduceKind::Sum, &mut totals[column..], sums);
    }
}

/// Adds `N` registers of columns of some rows to their totals, in `CHAINS` sums of every so many rows: four sums wait for each other
/// less than their numbers are waited for.
///
/// # Safety
/// As [`Vector`]; the registers lie in memory in every row, and so do their totals.
#[inline(always)]
unsafe fn add_rows<V: Vector, T: Real, const N: usize, const CHAINS: usize, const SQUARES: bool>(
    x: Lying<T>,
    totals: *mut f32,
) {
    // SAFETY: the caller's promise.
    unsafe {
        let mut sums = [[V::splat(0.0); N]; CHAINS];
        let mut row = 0;
        while row + CHAINS <= x.rows {
            for (chain, sums) in sums.iter_mut().enumerate() {
                add_row::<V, T, N, SQUARES>(x.from.add((row + chain) * x.apart), sums);
            }
            row += CHAINS;
        }
        while row < x.rows {
            add_row::<V, T, N, SQUARES>(x.from.add(row * x.apart), &mut sums[0]);
            row += 1;
        }
        for register in 0..N {
            let to = totals.add(register * V::LANES);
            let mut total = V::load(to);
            for sums in &sums {
                total = total.plus(sums[register]);
            }
            total.store(to);
        }
    }
}

/// # Safety
/// As [`add_rows`], of one row.
#[inline(always)]
unsafe fn add_row<V: Vector, T: Real, const N: usize, const SQUARES: bool>(from: *const T, sums: &mut [V; N]) {
    for (register, sum) in sums.iter_mut().enumerate() {
        // SAFETY: the caller's promise.
        unsafe {
            let x = T::load::<V>(from.add(register * V::LANES));
            *sum = if SQUARES { sum.plus_product(x, x) } else { sum.plus(x) };
        }
    }
}
