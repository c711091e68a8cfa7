//! Operands into the order in which micro-kernels read them.
//!
//! Sources need no alignment: weights are packed from where they lie in the model's file.

use super::Micro;

/// Elements of a packed right operand of `n` columns and `k` rows.
pub(crate) fn panels_len(micro: &Micro, n: usize, k: usize) -> usize {
    n.div_ceil(micro.nr) * micro.nr * k
}

/// Packs all of B, element (k, n) at `start + k·row + n·column`, into panels.
///
/// # Safety
/// `start` is valid for those rows and columns; `packed` has [`panels_len`] elements.
pub(crate) unsafe fn pack_columns(
    micro: &Micro,
    start: *const f32,
    (row, column): (usize, usize),
    (n, k): (usize, usize),
    packed: &mut [f32],
) {
    for p in 0..n.div_ceil(micro.nr) {
        let panel = &mut packed[p * k * micro.nr..(p + 1) * k * micro.nr];
        // SAFETY: the caller's promise.
        unsafe { pack_panel(start, (row, column), p * micro.nr, n, k, micro.nr, panel) };
    }
}

/// Packs the columns from `first` on into one panel, zeros beyond column `n`.
///
/// # Safety
/// As [`pack_columns`]; `panel` has `k·nr` elements.
pub(crate) unsafe fn pack_panel(
    start: *const f32,
    (row, column): (usize, usize),
    first: usize,
    n: usize,
    k: usize,
    nr: usize,
    panel: &mut [f32],
) {
    let columns = nr.min(n - first);
    if column == 1 {
        for (depth, line) in panel.chunks_exact_mut(nr).enumerate().take(k) {
            // SAFETY: `columns` elements of row `depth`, which as bytes need no alignment.
            unsafe {
                let source = start.add(depth * row + first).cast::<u8>();
                std::ptr::copy_nonoverlapping(source, line.as_mut_ptr().cast::<u8>(), columns * size_of::<f32>());
            }
            line[columns..].fill(0.0);
        }
    } else {
        // Squares of B, turned: where B is transposed (row distance 1), four numbers of a column are one load.
        const SIDE: usize = 4;
        let turned = if row == 1 { (k / SIDE * SIDE, columns / SIDE * SIDE) } else { (0, 0) };
        for (c, depth) in (0..turned.1).step_by(SIDE).flat_map(|c| (0..turned.0).step_by(SIDE).map(move |d| (c, d))) {
            let square: [[f32; SIDE]; SIDE] = std::array::from_fn(|own| {
                // SAFETY: the elements from (depth, first + c + own) of B on, one behind the other.
                unsafe { start.add(depth + (first + c + own) * column).cast::<[f32; SIDE]>().read_unaligned() }
            });
            for (own, line) in panel[depth * nr..(depth + SIDE) * nr].chunks_exact_mut(nr).enumerate() {
                line[c..c + SIDE].copy_from_slice(&square.map(|column| column[own]));
            }
        }
        for c in 0..columns {
            // What squares have left, of a column at a time.
            for depth in if c < turned.1 { turned.0 } else { 0 }..k {
                // SAFETY: element (depth, first + c) of B.
                panel[depth * nr + c] = unsafe { start.add(depth * row + (first + c) * column).read_unaligned() };
            }
        }
        if columns < nr {
            panel.chunks_exact_mut(nr).take(k).for_each(|line| line[columns..].fill(0.0));
        }
    }
}

/// Packs `rows` rows of A, element (m, k) at `start + m·row + k·column`, `mr` elements per column.
///
/// # Safety
/// `start` is valid for those rows and `length` columns; `packed` has `length·mr` elements.
pub(crate) unsafe fn pack_tile(
    start: *const f32,
    (row, column): (usize, usize),
    rows: usize,
    length: usize,
    mr: usize,
    packed: &mut [f32],
) {
    for r in 0..rows {
        for c in 0..length {
            // SAFETY: element (r, c) of A.
            packed[c * mr + r] = unsafe { start.add(r * row + c * column).read_unaligned() };
        }
    }
}

/// Elements of a packed left operand of `m` rows and `k` columns.
pub(crate) fn rows_len(micro: &Micro, m: usize, k: usize) -> usize {
    m.next_multiple_of(micro.mr) * k
}

/// Packs all of a row-major A into tiles.
///
/// # Safety
/// `start` is valid for `m·k` elements.
pub(crate) unsafe fn pack_rows(micro: &Micro, start: *const f32, m: usize, k: usize, packed: &mut [f32]) {
    for first in (0..m).step_by(micro.mr) {
        let rows = micro.mr.min(m - first);
        let tile = &mut packed[first * k..(first + micro.mr) * k];
        // SAFETY: `rows` whole rows of A.
        unsafe { pack_tile(start.add(first * k), (k, 1), rows, k, micro.mr, tile) };
    }
}
