//! Operands in the order in which blocks read them.
//!
//! Sources need no alignment: weights are packed from where they lie in the model's file.

use super::{BLOCK, PANEL_STEP_BYTES, STEP, TILE};
use crate::Isa;
use crate::isa::multiversion;
use crate::real::Real;
use half::bf16;

/// Numbers of a step of a panel.
const PANEL_STEP: usize = PANEL_STEP_BYTES / size_of::<bf16>();

/// Numbers of a step's part that are packed together where the step is not whole.
const PART: usize = 8;

/// Rounds numbers, `apart` numbers from one to the next.
///
/// # Safety
/// `from` can be read for them, as bytes of any alignment; `to` holds as many.
unsafe fn line<T: Real>(isa: Isa, from: *const T, apart: usize, to: &mut [bf16]) {
    if apart == 1 && from.is_aligned() {
        // SAFETY: the caller's promise.
        T::round_all(isa, unsafe { std::slice::from_raw_parts(from, to.len()) }, to);
        return;
    }
    for (index, number) in to.iter_mut().enumerate() {
        // SAFETY: the caller's promise.
        *number = unsafe { from.add(index * apart).read_unaligned() }.round();
    }
}

/// Numbers of a panel whose summed axis is `k` long.
pub(crate) fn panel_len(k: usize) -> usize {
    k.div_ceil(STEP) * PANEL_STEP
}

/// A right operand to pack: column `c` of row `k` lies `k·row + c·column` numbers from `start`.
#[derive(Clone, Copy)]
pub(crate) struct Panels<T> {
    pub start: *const T,
    pub row: usize,
    pub column: usize,
    /// Columns in all.
    pub n: usize,
    pub k: usize,
}

/// Packs the 32 columns from `first` on, with zeros beyond the last column and row.
///
/// # Safety
/// `from` can be read for its rows and columns; `panel` has [`panel_len`] numbers.
pub(crate) unsafe fn pack_panel<T: Real>(isa: Isa, from: &Panels<T>, first: usize, panel: &mut [bf16]) {
    let columns = BLOCK.min(from.n - first);
    let start = from.start.wrapping_add(first * from.column);
    panel.fill(bf16::ZERO);
    if from.column == 1 {
        let mut lines = [[bf16::ZERO; BLOCK]; 2];
        for (pair, packed) in panel.chunks_exact_mut(2 * BLOCK).enumerate().take(from.k.div_ceil(2)) {
            for (numbers, k) in lines.iter_mut().zip(2 * pair..) {
                match k < from.k {
                    // SAFETY: `columns` numbers of row k.
                    true => unsafe { line(isa, start.add(k * from.row), 1, &mut numbers[..columns]) },
                    false => numbers.fill(bf16::ZERO),
                }
            }
            interleave(isa, &lines[0], &lines[1], packed);
        }
        return;
    }
    // A column at a time reads memory in order where the operand is transposed. Two neighbours of the summed
    // axis move as one.
    let mut lines = [[bf16::ZERO; STEP]; BLOCK];
    for (from_k, step) in (0..from.k).step_by(STEP).zip(panel.chunks_exact_mut(PANEL_STEP)) {
        let count = STEP.min(from.k - from_k);
        for (column, numbers) in lines[..columns].iter_mut().enumerate() {
            // SAFETY: `count` numbers of this column.
            unsafe {
                let source = start.add(column * from.column + from_k * from.row);
                line(isa, source, from.row, &mut numbers[..count]);
            }
            numbers[count..].fill(bf16::ZERO);
        }
        transpose(isa, bytemuck::cast_ref(&lines), bytemuck::cast_slice_mut(step));
    }
}

multiversion! {
    /// Writes each column of the lines as a line.
    fn transpose(lines: &[[u32; STEP / 2]; BLOCK], packed: &mut [u32]) = transpose_each
}

#[inline(always)]
fn transpose_each(lines: &[[u32; STEP / 2]; BLOCK], packed: &mut [u32]) {
    for (pair, packed) in packed.chunks_exact_mut(BLOCK).enumerate() {
        for (two, line) in packed.iter_mut().zip(lines) {
            *two = line[pair];
        }
    }
}

multiversion! {
    /// Writes the numbers of two lines in turns.
    fn interleave(even: &[bf16; BLOCK], odd: &[bf16; BLOCK], packed: &mut [bf16]) = interleave_each
}

#[inline(always)]
fn interleave_each(even: &[bf16; BLOCK], odd: &[bf16; BLOCK], packed: &mut [bf16]) {
    for (two, (&even, &odd)) in packed.chunks_exact_mut(2).zip(even.iter().zip(odd)) {
        two[0] = even;
        two[1] = odd;
    }
}

/// Numbers of a left operand of `m` rows and `k` columns in tiles.
pub(crate) fn tiles_len(m: usize, k: usize) -> usize {
    m.next_multiple_of(TILE) * k.next_multiple_of(STEP)
}

/// A left operand to pack: column `c` of row `r` lies `r·row + c·column` numbers from `start`.
#[derive(Clone, Copy)]
pub(crate) struct LeftRows<T> {
    pub start: *const T,
    pub row: usize,
    pub column: usize,
    pub rows: usize,
    pub k: usize,
}

/// Packs a left operand: per 16 rows the steps one after the other. Beyond the last row and column are
/// zeros.
///
/// # Safety
/// `from` can be read for its rows and columns; `tiles` has [`tiles_len`] numbers.
pub(crate) unsafe fn pack_tiles<T: Real>(isa: Isa, from: LeftRows<T>, tiles: &mut [bf16]) {
    // The body reads what the caller promises.
    fill_tiles(isa, from, tiles);
}

multiversion! {
    fn fill_tiles<T: Real>(from: LeftRows<T>, tiles: &mut [bf16]) = fill_each_tile
}

#[inline(always)]
fn fill_each_tile<T: Real>(from: LeftRows<T>, tiles: &mut [bf16]) {
    let tile_len = TILE * from.k.next_multiple_of(STEP);
    for (first, tile) in (0..from.rows).step_by(TILE).zip(tiles.chunks_exact_mut(tile_len.max(1))) {
        for r in 0..TILE {
            let row = from.start.wrapping_add((first + r) * from.row);
            for (step, k) in (0..from.k).step_by(STEP).enumerate() {
                let numbers = &mut tile[(step * TILE + r) * STEP..][..STEP];
                let count = if first + r < from.rows { STEP.min(from.k - k) } else { 0 };
                let source = row.wrapping_add(k * from.column);
                // SAFETY: `pack_tiles` is called for an operand that has these numbers.
                unsafe {
                    if count == STEP && from.column == 1 {
                        // A whole step is a few vectors.
                        let source = source.cast::<[T; STEP]>().read_unaligned();
                        numbers.iter_mut().zip(source).for_each(|(number, source)| *number = source.round());
                        continue;
                    }
                    let mut done = 0;
                    while from.column == 1 && done + PART <= count {
                        let source = source.add(done).cast::<[T; PART]>().read_unaligned();
                        let numbers = numbers[done..].iter_mut().zip(source);
                        numbers.for_each(|(number, source)| *number = source.round());
                        done += PART;
                    }
                    for (c, number) in numbers[..count].iter_mut().enumerate().skip(done) {
                        *number = source.add(c * from.column).read_unaligned().round();
                    }
                }
                numbers[count..].fill(bf16::ZERO);
            }
        }
    }
}
