//! Products of few rows, which take as long as the weights take to be read.
//!
//! ```text
//! for each group of rows of the panel                     read once, from memory
//!     for each strip of two registers of columns
//!         for each four rows of x                         each code becomes f32 once for them
//!             sums += (Σ x · code - zero · Σ x) · scale   inner sums in registers
//! ```

use super::{GroupedWeights, Grouping, LINE, SCALES_BYTES, Width, ask_ahead};
use crate::Isa;
use crate::matrix::BLOCK;
use crate::vector::{Vector, on_vectors};

/// Rows that share what codes become.
const ROWS: usize = 4;
/// Registers of columns that are summed at a time.
const VECTORS: usize = 2;

/// Rows to multiply, each in whole lines for every group, with zeros behind the rows of a group.
#[derive(Clone, Copy)]
pub(crate) struct Rows<'a> {
    /// Row by row [`Rows::len`] numbers.
    pub numbers: &'a [f32],
    /// Row by row the sum of each group's numbers.
    pub sums: &'a [f32],
    pub count: usize,
}

impl Rows<'_> {
    /// Numbers of a row.
    pub fn len(grouping: &Grouping) -> usize {
        grouping.groups() * grouping.lines() * LINE
    }
}

/// `to[row] = rows[row] · panel`.
///
/// # Panics
/// Where there are fewer numbers than that.
pub(crate) fn multiply(isa: Isa, weights: &GroupedWeights, panel: usize, rows: Rows<'_>, to: &mut [[f32; BLOCK]]) {
    let grouping = &weights.grouping;
    assert!(rows.numbers.len() >= rows.count * Rows::len(grouping) && to.len() >= rows.count);
    assert!(rows.sums.len() >= rows.count * grouping.groups());
    to[..rows.count].fill([0.0; BLOCK]);
    multiply_panel(isa, weights.panel(panel), grouping, rows, to);
}

on_vectors! {
    /// The panel, rows and sums have the sizes of the grouping.
    fn multiply_panel(panel: *const u8, grouping: &Grouping, rows: Rows<'_>, to: &mut [[f32; BLOCK]]) = each_group
}

/// # Safety
/// As [`Vector`], and [`multiply`] for the sizes.
#[inline(always)]
unsafe fn each_group<V: Vector>(panel: *const u8, grouping: &Grouping, rows: Rows<'_>, to: &mut [[f32; BLOCK]]) {
    // SAFETY: the caller's promise.
    unsafe {
        match grouping.width {
            Width::Four => each_group_of::<V, true>(panel, grouping, rows, to),
            Width::Eight => each_group_of::<V, false>(panel, grouping, rows, to),
        }
    }
}

/// A group of a panel, and what it is multiplied by.
#[derive(Clone, Copy)]
struct Group {
    codes: *const u8,
    lines: usize,
    scales: *const f32,
    /// Null where they are 0.
    zeros: *const i8,
    /// Numbers of the first row, and their distance to the next row's.
    x: *const f32,
    row: usize,
    /// The sum of the first row's, and its distance.
    sum: *const f32,
    sum_row: usize,
}

/// # Safety
/// As [`each_group`], with codes of 4 bits or of 8.
#[inline(always)]
unsafe fn each_group_of<V: Vector, const FOUR: bool>(
    panel: *const u8,
    grouping: &Grouping,
    rows: Rows<'_>,
    to: &mut [[f32; BLOCK]],
) {
    let (groups, lines, row) = (grouping.groups(), grouping.lines(), Rows::len(grouping));
    let codes_bytes = lines * grouping.width.line_bytes();
    // SAFETY: the caller's promise, for every address below.
    unsafe {
        for g in 0..groups {
            let codes = panel.add(g * (codes_bytes + SCALES_BYTES));
            let zeros = panel.wrapping_add(grouping.zeros_offset() + g * BLOCK).cast();
            let group = Group {
                codes,
                lines,
                scales: codes.add(codes_bytes).cast(),
                zeros: if grouping.has_zeros { zeros } else { std::ptr::null() },
                x: rows.numbers.as_ptr().add(g * lines * LINE),
                row,
                sum: rows.sums.as_ptr().add(g),
                sum_row: groups,
            };
            for column in (0..BLOCK).step_by(VECTORS * V::LANES) {
                for first in (0..rows.count).step_by(ROWS) {
                    let group = Group { x: group.x.add(first * row), sum: group.sum.add(first * groups), ..group };
                    let to = to.as_mut_ptr().add(first);
                    // As many sums at a time as hide how long one takes.
                    match rows.count - first {
                        1 => strip::<V, FOUR, 1, 4>(group, column, to),
                        2 => strip::<V, FOUR, 2, 2>(group, column, to),
                        3 => strip::<V, FOUR, 3, 2>(group, column, to),
                        _ => strip::<V, FOUR, ROWS, 1>(group, column, to),
                    }
                }
            }
        }
    }
}

/// Adds a group's part to the sums of `R` rows, a strip of columns: `CHAINS` sums in turn for each.
///
/// # Safety
/// As [`each_group_of`]: there are so many rows.
#[inline(always)]
unsafe fn strip<V: Vector, const FOUR: bool, const R: usize, const CHAINS: usize>(
    group: Group,
    column: usize,
    to: *mut [f32; BLOCK],
) {
    // SAFETY: the caller's promise, for every access below.
    unsafe {
        let mut sums = [[[V::splat(0.0); R]; VECTORS]; CHAINS];
        let (mut line, mut x) = (group.codes, group.x);
        let width = if FOUR { Width::Four } else { Width::Eight };
        for l in 0..group.lines {
            // The first strip of a panel brings it.
            if column == 0 {
                ask_ahead::<true>(width, line, l);
            }
            for k in 0..LINE {
                let sums = &mut sums[k % CHAINS];
                let (word, bit) = width.place(k);
                let words = line.add(word).cast::<u32>().add(column);
                for (v, sums) in sums.iter_mut().enumerate() {
                    let weights = V::widen_bits(words.add(v * V::LANES), bit, width.bits());
                    for (r, sum) in sums.iter_mut().enumerate() {
                        *sum = sum.plus_product(V::splat(*x.add(r * group.row + k)), weights);
                    }
                }
            }
            line = line.add(width.line_bytes());
            x = x.add(LINE);
        }
        for v in 0..VECTORS {
            let column = column + v * V::LANES;
            let scales = V::load(group.scales.add(column));
            for r in 0..R {
                let mut sum = sums[0][v][r];
                for chain in &sums[1..] {
                    sum = sum.plus(chain[v][r]);
                }
                if !group.zeros.is_null() {
                    let zeros = V::widen_i8(group.zeros.add(column));
                    sum = sum.minus_product(zeros, V::splat(*group.sum.add(r * group.sum_row)));
                }
                let place = to.add(r).cast::<f32>().add(column);
                V::load(place).plus_product(sum, scales).store(place);
            }
        }
    }
}
