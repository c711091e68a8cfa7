//! Operands into the order in which micro-kernels read them.

use super::{Left, Micro};

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
            // SAFETY: `columns` elements of row `depth`.
            let source = unsafe { std::slice::from_raw_parts(start.add(depth * row + first), columns) };
            line[..columns].copy_from_slice(source);
            line[columns..].fill(0.0);
        }
    } else {
        panel.fill(0.0);
        // A column at a time reads memory in order where B is transposed (row distance 1).
        for c in 0..columns {
            for depth in 0..k {
                // SAFETY: element (depth, first + c) of B.
                panel[depth * nr + c] = unsafe { *start.add(depth * row + (first + c) * column) };
            }
        }
    }
}

/// Packs `rows` rows of A from `m` on, columns `depth..depth + length`, with `mr` elements per column.
///
/// # Safety
/// `left` is valid for those rows and columns; `packed` has `length·mr` elements.
pub(crate) unsafe fn pack_tile(
    left: Left,
    (m, rows): (usize, usize),
    (depth, length): (usize, usize),
    mr: usize,
    packed: &mut [f32],
) {
    for row in 0..rows {
        // SAFETY: element (m + row, depth) of A.
        let source = unsafe { left.start.add((m + row) * left.row + depth * left.column) };
        for column in 0..length {
            // SAFETY: element (m + row, depth + column) of A.
            packed[column * mr + row] = unsafe { *source.add(column * left.column) };
        }
    }
}
