//! How large scores can be at most: no product of two vectors is larger than that of their lengths (Cauchy and Schwarz).
//! Where that is little, powers of scores need no maximum to be taken away from them first.

use crate::matrix::{BLOCK, Left, STEP_BYTES, TILE};
use crate::vector::{Vector, on_vectors};
use half::bf16;

/// Numbers of a group of a panel: two of every column.
const GROUP: usize = 2 * BLOCK;

/// The square of the length of the longest row of `left`, of so many; infinite where that is not a number.
pub(super) struct Rows<'a, 'b> {
    pub left: &'a Left<'b>,
    pub count: usize,
    pub square: &'a mut f32,
}

on_vectors! {
    pub(super) fn longest_row(rows: Rows<'_, '_>) = find_longest_row
}

/// # Safety
/// As [`Vector`].
#[inline(always)]
unsafe fn find_longest_row<V: Vector>(rows: Rows<'_, '_>) {
    let Rows { left, count, square } = rows;
    *square = 0.0;
    for row in 0..count {
        let start = left.tiles[row / TILE].wrapping_add(row % TILE * left.pitch);
        // SAFETY: the caller's promise; a row has all steps.
        unsafe {
            let mut sums = [V::splat(0.0); 2];
            for &offset in left.offsets {
                let step = start.wrapping_add(offset).cast::<bf16>();
                for at in (0..STEP_BYTES / size_of::<bf16>()).step_by(2 * V::LANES) {
                    add_squares(&mut sums, step.wrapping_add(at));
                }
            }
            *square = at_least(*square, sums[0].plus(sums[1]).sum_of_lanes());
        }
    }
}

/// The larger one, or infinity for what is not a number.
#[inline(always)]
fn at_least(square: f32, other: f32) -> f32 {
    if other.is_nan() { f32::INFINITY } else { square.max(other) }
}

/// # Safety
/// As [`Vector`]; there are two registers of numbers.
#[inline(always)]
unsafe fn add_squares<V: Vector>(sums: &mut [V; 2], from: *const bf16) {
    // SAFETY: the caller's promise.
    unsafe {
        let [first, second] = V::widen_split(from);
        *sums = [sums[0].plus_product(first, first), sums[1].plus_product(second, second)];
    }
}

/// The square of the length of the longest column of panels of so many numbers; infinite where that is not a number.
pub(super) struct Columns<'a> {
    pub panels: &'a [bf16],
    pub panel_len: usize,
    pub square: &'a mut f32,
}

on_vectors! {
    pub(super) fn longest_column(columns: Columns<'_>) = find_longest_column
}

/// # Safety
/// As [`Vector`].
#[inline(always)]
unsafe fn find_longest_column<V: Vector>(columns: Columns<'_>) {
    /// Pairs of registers of a group, at most.
    const MOST: usize = BLOCK / 4;
    let Columns { panels, panel_len, square } = columns;
    *square = 0.0;
    for panel in panels.chunks_exact(panel_len.max(1)) {
        // SAFETY: the caller's promise; what is read are whole groups.
        unsafe {
            let mut sums = [[V::splat(0.0); 2]; MOST];
            for group in panel.chunks_exact(GROUP) {
                for (index, sums) in sums.iter_mut().enumerate().take(BLOCK / V::LANES) {
                    add_squares(sums, group.as_ptr().wrapping_add(index * 2 * V::LANES));
                }
            }
            let neighbours = V::order_of(1);
            let (mut most, mut all) = (V::splat(0.0), V::splat(0.0));
            for [first, second] in sums.into_iter().take(BLOCK / V::LANES) {
                // Both numbers of a column's groups are in the same lane of either register, or in neighbouring lanes.
                let squares = match V::SPLIT {
                    1 => [first.plus(second); 2],
                    _ => [first.plus(first.exchanged(neighbours)), second.plus(second.exchanged(neighbours))],
                };
                most = squares[0].at_least(squares[1]).at_least(most);
                all = all.plus(squares[0]).plus(squares[1]);
            }
            // A maximum may pass over what is not a number, and with it over others.
            let all = all.sum_of_lanes();
            *square = at_least(*square, if all.is_nan() { all } else { most.largest_lane() });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Isa;
    use crate::matrix::{self, Panels};

    fn numbers(count: usize, seed: usize) -> Vec<bf16> {
        (0..count).map(|at| bf16::from_f32(((at * 37 + seed * 11) % 23) as f32 / 8.0 - 1.3)).collect()
    }

    fn squares(numbers: &[bf16], length: usize) -> f32 {
        let lines = numbers.chunks_exact(length);
        lines.map(|line| line.iter().map(|x| x.to_f32().powi(2)).sum::<f32>()).fold(0.0, f32::max)
    }

    #[test]
    fn the_longest_is_found() {
        for (isa, depth, count) in
            Isa::available().into_iter().flat_map(|isa| [(isa, 64, 70), (isa, 32, 5), (isa, 40, 33), (isa, 7, 1)])
        {
            let mut keys = numbers(depth * count, depth);
            keys[(count - 1) * depth + 1] = bf16::from_f32(9.0);
            let panel_len = matrix::panel_len::<bf16>(depth);
            let mut panels = vec![bf16::ZERO; count.div_ceil(BLOCK) * panel_len];
            for (index, panel) in panels.chunks_exact_mut(panel_len).enumerate() {
                let from = Panels { start: keys.as_ptr(), row: 1, column: depth, n: count, k: depth };
                // SAFETY: there are as many keys, as deep.
                unsafe { matrix::pack_panel::<bf16, bf16>(isa, &from, index * BLOCK, panel) };
            }
            let want = squares(&keys, depth);
            let mut square = 0.0;
            longest_column(isa, Columns { panels: &panels, panel_len, square: &mut square });
            assert!((square - want).abs() < 1e-4 * want, "{isa:?}, {count} columns of {depth}: {square}, not {want}");
            for odd in [f32::NAN, f32::INFINITY] {
                // In the lane of a longer one, so that a maximum could pass over that.
                panels[3] = bf16::from_f32(odd);
                longest_column(isa, Columns { panels: &panels, panel_len, square: &mut square });
                assert_eq!(square, f32::INFINITY, "{isa:?}, {count} columns of {depth}");
            }
        }
    }

    #[test]
    fn the_longest_row_is_found() {
        for isa in Isa::available() {
            let (depth, rows) = (64, 21);
            let mut queries = numbers(depth * rows, 5);
            let offsets = [0, STEP_BYTES];
            for (odd, row) in [(9.0, 0), (11.0, 20), (f32::NAN, 7)] {
                queries[row * depth + 40] = bf16::from_f32(odd);
                let want = if odd.is_nan() { f32::INFINITY } else { squares(&queries, depth) };
                let start: *const u8 = queries.as_ptr().cast();
                let pitch = depth * size_of::<bf16>();
                let left = Left::of_tiles([start, start.wrapping_add(TILE * pitch)], pitch, &offsets);
                let mut square = 0.0;
                longest_row(isa, Rows { left: &left, count: rows, square: &mut square });
                let is_near = square == want || (square - want).abs() < 1e-4 * want;
                assert!(is_near, "{isa:?}: {square}, not {want}");
            }
        }
    }
}
