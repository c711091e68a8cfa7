//! f32 matrix products: `C[m, n] = Σ A[m, k] · B[k, n]`.
//!
//! The right operand lies in panels of [`Micro::nr`] columns, each `k` rows deep and zero-padded: packed
//! once for weights, on the fly for everything else. The left operand is read where it lies, or from
//! tiles of [`Micro::mr`] rows: weights are packed so once, other operands just before use where their
//! rows lie so far apart that they would evict each other from the cache. A micro-kernel multiplies a
//! tile by a panel into a tile of C held in registers.
//!
//! ```text
//! for each block of KC rows of B                  panels of the block stay in L2
//!     for each tile of MR rows of A               packed tile stays in L1
//!         for each panel of NR columns of B
//!             C tile += A tile · B panel          micro-kernel
//! ```

mod micro;
mod pack;

pub(crate) use micro::{Ahead, Micro};
pub(crate) use pack::{pack_columns, pack_panel, pack_rows, panels_len, rows_len};

/// Rows of B in one block: a panel of 32 columns then fills 32 KiB.
pub(crate) const KC: usize = 256;

/// So few rows of A leave nothing of a panel to be read again.
const FEW_ROWS: usize = 4;

/// Largest tile of any micro-kernel, in elements.
pub(crate) const TILE: usize = 12 * 32;

/// The left operand.
#[derive(Clone, Copy)]
pub(crate) enum Left {
    /// Element (m, k) lies at `start + m·row + k·column`.
    Strided { start: *const f32, row: usize, column: usize },
    /// Packed by [`pack_rows`].
    Packed(*const f32),
}

/// Rows this many bytes apart fall into one set of an 8-way cache of 32 KiB: a dozen of them would
/// evict each other.
pub(crate) const CACHE_PERIOD: usize = 4096;

/// The result: element (m, n) lies at `start + m·row + n`.
#[derive(Clone, Copy)]
pub(crate) struct Target {
    pub start: *mut f32,
    pub row: usize,
}

/// Scratch of one thread for [`multiply`], in elements.
pub(crate) fn scratch_len(micro: &Micro) -> usize {
    micro.mr * COPY_ROW + TILE
}

/// Distance of copied rows of A: not a multiple of [`CACHE_PERIOD`].
const COPY_ROW: usize = KC + 16;

/// What happens to a finished tile of C before it is stored: rows from `m` on, columns from `n` on,
/// `rows x columns` of them in `tile` with a distance of `nr` between rows.
pub(crate) type Finish<'a> = &'a dyn Fn(&mut [f32], usize, usize, usize, usize);

/// Multiplies rows `m0..m1` of A (`m0` a multiple of [`Micro::mr`]) with the panels `p0..p1` of B, whose columns are `n` in all.
///
/// `panel(p, k)` gives the packed rows from `k` on of panel `p` (a multiple of [`KC`] on), after `ready(k)` was
/// called for that block: a driver that packs on the fly does so there. Without it panels are whole. `panel` is also
/// asked for later blocks and for panels of B beyond `p1`, where it may give any address: those are prefetched, never
/// read.
///
/// # Safety
/// `left` and `target` are valid for those rows and columns, nobody else touches that part of the
/// target, each panel has `nr` elements per row, and `scratch` has [`scratch_len`] elements.
pub(crate) unsafe fn multiply(
    micro: &Micro,
    left: Left,
    (m0, m1): (usize, usize),
    (p0, p1): (usize, usize),
    (n, k): (usize, usize),
    panel: &dyn Fn(usize, usize) -> *const f32,
    mut ready: Option<&mut dyn FnMut(usize)>,
    target: Target,
    scratch: &mut [f32],
    finish: Option<Finish<'_>>,
) {
    let (packed, tile) = scratch.split_at_mut(micro.mr * COPY_ROW);
    let mut depth = 0;
    // A few rows read each panel once: from its start to its end, as memory gives it best.
    let streams = m1 - m0 <= FEW_ROWS && ready.is_none();
    let block = if streams { usize::MAX } else { KC };
    loop {
        let length = block.min(k - depth);
        let (first, last) = (depth == 0, depth + length >= k);
        if let Some(ready) = &mut ready {
            ready(depth);
        }
        let mut m = m0;
        while m < m1 {
            let rows = micro.mr.min(m1 - m);
            let a = match left {
                // SAFETY: tiles lie one after the other, `m` is a multiple of their rows.
                Left::Packed(start) => (unsafe { start.add(m * k + depth * micro.mr) }, 1, micro.mr),
                Left::Strided { start, row, column } => {
                    // SAFETY: element (m, depth) of the left operand.
                    let a = unsafe { start.add(m * row + depth * column) };
                    let collide = rows > 4 && (row * size_of::<f32>()).is_multiple_of(CACHE_PERIOD);
                    if collide && p1 - p0 > 1 && column == 1 {
                        for (r, line) in packed.chunks_exact_mut(COPY_ROW).enumerate().take(rows) {
                            // SAFETY: row m + r, columns depth..depth + length of the left operand.
                            unsafe { std::ptr::copy_nonoverlapping(a.add(r * row), line.as_mut_ptr(), length) };
                        }
                        (packed.as_ptr(), COPY_ROW, 1)
                    } else if collide && p1 - p0 > 1 {
                        // SAFETY: rows m..m + rows and columns depth..depth + length of the left operand.
                        unsafe { pack::pack_tile(a, (row, column), rows, length, micro.mr, packed) };
                        (packed.as_ptr(), 1, micro.mr)
                    } else {
                        (a, row, column)
                    }
                }
            };
            let tile_number = (m - m0) / micro.mr;
            for p in p0..p1 {
                let column = p * micro.nr;
                let b = panel(p, depth);
                // The next block of this panel comes meanwhile, or the first one of a panel of the next task.
                let next = if last { (p + p1 - p0, 0) } else { (p, depth + length) };
                let ahead = match next.0 * micro.nr < n {
                    _ if streams => Ahead::stream(micro, b),
                    true => Ahead::panel(micro, panel(next.0, next.1), tile_number, length),
                    false => Ahead::none(b),
                };
                let columns = micro.nr.min(n - column);
                // SAFETY: the caller's promises; the tile buffer holds mr x nr elements.
                unsafe {
                    if columns == micro.nr && !(last && finish.is_some()) {
                        let c = target.start.add(m * target.row + column);
                        micro.tile_ahead(rows, length, a, b, (c, target.row), !first, ahead);
                        continue;
                    }
                    if !first {
                        for row in 0..rows {
                            let source = target.start.add((m + row) * target.row + column);
                            std::ptr::copy_nonoverlapping(source, tile.as_mut_ptr().add(row * micro.nr), columns);
                        }
                    }
                    micro.tile_ahead(rows, length, a, b, (tile.as_mut_ptr(), micro.nr), !first, ahead);
                    if last && let Some(finish) = finish {
                        finish(tile, m, column, rows, columns);
                    }
                    for row in 0..rows {
                        let sink = target.start.add((m + row) * target.row + column);
                        std::ptr::copy_nonoverlapping(tile.as_ptr().add(row * micro.nr), sink, columns);
                    }
                }
            }
            m += rows;
        }
        depth += length;
        if last {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Isa;

    /// Small integers, so that every order of summation gives the same sum.
    fn numbers(count: usize, seed: usize) -> Vec<f32> {
        (0..count).map(|i| ((i * 7 + seed * 13) % 11) as f32 - 5.0).collect()
    }

    #[test]
    fn every_micro_kernel_agrees_with_the_definition() {
        let sizes = [(1, 1, 1), (1, 33, 300), (5, 7, 3), (12, 32, 256), (13, 65, 257), (30, 100, 0), (25, 31, 600)];
        for isa in Isa::available() {
            let micro = Micro::new(isa);
            for (m, n, k) in sizes {
                for transposed in [false, true] {
                    let (a, b) = (numbers(m * k, 1), numbers(k * n, 2));
                    let at =
                        |row: usize, column: usize| if transposed { a[column * m + row] } else { a[row * k + column] };
                    let mut packed = vec![0.0; panels_len(&micro, n, k)];
                    // SAFETY: a row-major k x n matrix.
                    unsafe { pack_columns(&micro, b.as_ptr(), (n, 1), (n, k), &mut packed) };
                    let mut c = vec![f32::NAN; m * n];
                    let mut scratch = vec![0.0; scratch_len(&micro)];
                    let (row, column) = if transposed { (1, m) } else { (k, 1) };
                    // SAFETY: the matrices have those sizes.
                    unsafe {
                        multiply(
                            &micro,
                            Left::Strided { start: a.as_ptr(), row, column },
                            (0, m),
                            (0, n.div_ceil(micro.nr)),
                            (n, k),
                            &|p, depth| packed.as_ptr().add((p * k + depth) * micro.nr),
                            None,
                            Target { start: c.as_mut_ptr(), row: n },
                            &mut scratch,
                            None,
                        );
                    }
                    for (index, &got) in c.iter().enumerate() {
                        let (i, j) = (index / n, index % n);
                        let want: f32 = (0..k).map(|p| at(i, p) * b[p * n + j]).sum();
                        assert_eq!(got, want, "{} {m}x{n}x{k} at ({i}, {j})", isa.name());
                    }
                }
            }
        }
    }
}
