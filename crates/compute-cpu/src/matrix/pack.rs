//! Operands in the order in which blocks read them.
//!
//! Sources need no alignment: weights are packed from where they lie in the model's file.

use super::{BLOCK, Factor, GROUP_BYTES, STEP_BYTES, TILE, group, step};
use crate::Isa;
use crate::isa::multiversion;
use crate::real::Converts;
use halimede_tensor::Element;

/// Numbers of a step's part that are packed together where the step is not whole.
const PART: usize = 8;

/// Neighbours of the summed axis in a group, at most.
const GROUP_MAX: usize = GROUP_BYTES;

/// Converts numbers, `apart` numbers from one to the next.
///
/// # Safety
/// `from` can be read for them, as bytes of any alignment; `to` holds as many.
unsafe fn line<N: Element, T: Converts<N>>(isa: Isa, from: *const T, apart: usize, to: &mut [N]) {
    if apart == 1 && from.is_aligned() {
        // SAFETY: the caller's promise.
        T::convert_all(isa, unsafe { std::slice::from_raw_parts(from, to.len()) }, to);
        return;
    }
    for (index, number) in to.iter_mut().enumerate() {
        // SAFETY: the caller's promise.
        *number = unsafe { from.add(index * apart).read_unaligned() }.convert();
    }
}

/// Numbers of a step of a panel.
const fn panel_step<N>() -> usize {
    BLOCK * step::<N>()
}

/// Numbers of a panel whose summed axis is `k` long.
pub(crate) fn panel_len<N>(k: usize) -> usize {
    k.div_ceil(step::<N>()) * panel_step::<N>()
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
pub(crate) unsafe fn pack_panel<N: Element, T: Converts<N>>(isa: Isa, from: &Panels<T>, first: usize, panel: &mut [N]) {
    let (group, step) = (group::<N>(), step::<N>());
    let columns = BLOCK.min(from.n - first);
    let start = from.start.wrapping_add(first * from.column);
    panel.fill(N::zeroed());
    if from.column == 1 {
        let mut lines = [[N::zeroed(); BLOCK]; GROUP_MAX];
        let groups = panel.chunks_exact_mut(group * BLOCK).enumerate();
        for (index, packed) in groups.take(from.k.div_ceil(group)) {
            for (numbers, k) in lines.iter_mut().zip(group * index..).take(group) {
                match k < from.k {
                    // SAFETY: `columns` numbers of row k.
                    true => unsafe { line(isa, start.add(k * from.row), 1, &mut numbers[..columns]) },
                    false => numbers.fill(N::zeroed()),
                }
            }
            interleave(isa, &lines[..group], packed);
        }
        return;
    }
    // A column at a time reads memory in order where the operand is transposed. The neighbours of a group
    // move as one.
    let mut lines = Lines([[0; STEP_BYTES / GROUP_BYTES]; BLOCK]);
    for (from_k, packed) in (0..from.k).step_by(step).zip(panel.chunks_exact_mut(panel_step::<N>())) {
        let count = step.min(from.k - from_k);
        for (column, numbers) in lines.0[..columns].iter_mut().enumerate() {
            let numbers: &mut [N] = bytemuck::cast_slice_mut(numbers);
            // SAFETY: `count` numbers of this column.
            unsafe {
                let source = start.add(column * from.column + from_k * from.row);
                line(isa, source, from.row, &mut numbers[..count]);
            }
            numbers[count..].fill(N::zeroed());
        }
        transpose(isa, &lines, bytemuck::cast_slice_mut(packed));
    }
}

/// The groups of a step of 32 columns, column by column.
struct Lines([[u32; STEP_BYTES / GROUP_BYTES]; BLOCK]);

multiversion! {
    /// Writes each column of the lines as a line.
    fn transpose(lines: &Lines, packed: &mut [u32]) = transpose_each
}

#[inline(always)]
fn transpose_each(lines: &Lines, packed: &mut [u32]) {
    for (index, packed) in packed.chunks_exact_mut(BLOCK).enumerate() {
        for (group, line) in packed.iter_mut().zip(&lines.0) {
            *group = line[index];
        }
    }
}

multiversion! {
    /// Writes the numbers of two or four lines in turns.
    fn interleave<N: Element>(lines: &[[N; BLOCK]], packed: &mut [N]) = interleave_each
}

#[inline(always)]
fn interleave_each<N: Element>(lines: &[[N; BLOCK]], packed: &mut [N]) {
    #[inline(always)]
    fn each<N: Element, const GROUP: usize>(lines: &[[N; BLOCK]; GROUP], packed: &mut [N]) {
        for (column, group) in packed.chunks_exact_mut(GROUP).enumerate().take(BLOCK) {
            for k in 0..GROUP {
                group[k] = lines[k][column];
            }
        }
    }
    match lines {
        [a, b] => each(&[*a, *b], packed),
        [a, b, c, d] => each(&[*a, *b, *c, *d], packed),
        _ => debug_assert!(false, "groups of {}", lines.len()),
    }
}

/// Numbers of a left operand of `m` rows and `k` columns in tiles.
pub(crate) fn tiles_len<F: Factor>(m: usize, k: usize) -> usize {
    m.next_multiple_of(TILE) * k.next_multiple_of(F::STEP)
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
pub(crate) unsafe fn pack_tiles<F: Factor, T: Converts<F>>(isa: Isa, from: LeftRows<T>, tiles: &mut [F]) {
    // The body reads what the caller promises.
    fill_tiles(isa, from, tiles);
}

multiversion! {
    fn fill_tiles<F: Factor, T: Converts<F>>(from: LeftRows<T>, tiles: &mut [F]) = fill_each_tile
}

#[inline(always)]
fn fill_each_tile<F: Factor, T: Converts<F>>(from: LeftRows<T>, tiles: &mut [F]) {
    let tile_len = TILE * from.k.next_multiple_of(F::STEP);
    for (first, tile) in (0..from.rows).step_by(TILE).zip(tiles.chunks_exact_mut(tile_len.max(1))) {
        for r in 0..TILE {
            let row = from.start.wrapping_add((first + r) * from.row);
            for (step, k) in (0..from.k).step_by(F::STEP).enumerate() {
                let numbers = &mut tile[(step * TILE + r) * F::STEP..][..F::STEP];
                let count = if first + r < from.rows { F::STEP.min(from.k - k) } else { 0 };
                let source = row.wrapping_add(k * from.column);
                // SAFETY: `pack_tiles` is called for an operand that has these numbers.
                unsafe {
                    if count == F::STEP && from.column == 1 {
                        // A whole step is a few vectors.
                        for (c, number) in numbers.iter_mut().enumerate() {
                            *number = source.add(c).read_unaligned().convert();
                        }
                        continue;
                    }
                    let mut done = 0;
                    while from.column == 1 && done + PART <= count {
                        let source = source.add(done).cast::<[T; PART]>().read_unaligned();
                        for (number, source) in numbers[done..done + PART].iter_mut().zip(source) {
                            *number = source.convert();
                        }
                        done += PART;
                    }
                    for c in done..count {
                        numbers[c] = source.add(c * from.column).read_unaligned().convert();
                    }
                }
                numbers[count..].fill(F::zeroed());
            }
        }
    }
}
