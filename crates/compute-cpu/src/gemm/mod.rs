//! f32 matrix products: `C[m, n] = Σ A[m, k] · B[k, n]`.
//!
//! The right operand lies in panels of [`Micro::nr`] columns, each `k` rows deep and zero-padded: packed
//! once for weights, on the fly for everything else. The left operand is read where it lies, or from
//! tiles of [`Micro::mr`] rows: weights are packed so once, other operands just before use where their
//! rows lie so far apart that they would evict each other from the cache. A micro-kernel multiplies a
//! tile by a panel into a tile of C held in registers, and finishes it there where that is simple.
//!
//! ```text
//! for each block of KC rows of B                  panels of the block stay in L2
//!     for each block of tiles of MR rows of A     stays in L2
//!         for each panel of NR columns of B       stays in L1
//!             for each tile of the block
//!                 C tile += A tile · B panel      micro-kernel, while the next panel comes
//! ```

mod micro;
mod pack;

pub(crate) use micro::{Ahead, End, Micro, Product};
pub(crate) use pack::{pack_columns, pack_panel, pack_rows, panels_len, rows_len};

/// Rows of B in one block: a panel of 32 columns then fills 32 KiB.
pub(crate) const KC: usize = 256;

/// So few rows of A leave nothing of a panel to be read again.
pub(crate) const FEW_ROWS: usize = 4;

/// Largest tile of any micro-kernel, in elements.
pub(crate) const TILE: usize = 12 * 32;

/// The left operand.
#[derive(Clone, Copy)]
pub(crate) enum Left {
    /// Element (m, k) lies at `start + m·row + k·column`.
    Strided { start: *const f32, row: usize, column: usize, copies: Copies },
    /// Packed by [`pack_rows`].
    Packed(*const f32),
}

/// Which tiles of a left operand that is read where it lies are copied before they meet panels.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Copies {
    /// Those whose rows would evict each other.
    #[default]
    WherePays,
    Never,
    /// All that meet several panels and have more than a few rows.
    Always,
}

impl Left {
    /// The part of a tile, `rows` rows from `m` on and `length` of the `k` columns from `depth` on, as a micro-kernel reads
    /// it: start, distance of rows, distance of columns. It is copied to `copy` where [`Copies`] say so.
    ///
    /// # Safety
    /// The operand has them, `m` is a multiple of [`Micro::mr`], and a copy has [`copy_len`] elements.
    unsafe fn part(
        self,
        micro: &Micro,
        (m, rows): (usize, usize),
        (depth, length, k): (usize, usize, usize),
        copy: Option<&mut [f32]>,
    ) -> (*const f32, usize, usize) {
        // SAFETY: the caller's promise, for all below.
        unsafe {
            let (start, row, column, copies) = match self {
                Left::Packed(start) => return (start.add(m * k + depth * micro.mr), 1, micro.mr),
                Left::Strided { start, row, column, copies } => {
                    (start.add(m * row + depth * column), row, column, copies)
                }
            };
            let pays = match copies {
                Copies::WherePays => rows_collide(row),
                Copies::Never => false,
                Copies::Always => true,
            };
            let Some(copy) = copy.filter(|_| rows > FEW_ROWS && pays) else { return (start, row, column) };
            if column != 1 {
                pack::pack_tile(start, (row, column), rows, length, micro.mr, copy);
                return (copy.as_ptr(), 1, micro.mr);
            }
            for (r, line) in copy.chunks_exact_mut(COPY_ROW).enumerate().take(rows) {
                std::ptr::copy_nonoverlapping(start.add(r * row), line.as_mut_ptr(), length);
            }
            (copy.as_ptr(), COPY_ROW, 1)
        }
    }
}

/// Rows this many bytes apart fall into one set of an 8-way cache of 32 KiB: a dozen of them would
/// evict each other.
pub(crate) const CACHE_PERIOD: usize = 4096;

/// Whether rows so many elements apart would evict each other.
pub(crate) fn rows_collide(row: usize) -> bool {
    (row * size_of::<f32>()).is_multiple_of(CACHE_PERIOD)
}

/// The result: element (m, n) lies at `start + m·row + n`.
#[derive(Clone, Copy)]
pub(crate) struct Target {
    pub start: *mut f32,
    pub row: usize,
}

/// Scratch of one thread for [`multiply`], in elements.
pub(crate) fn scratch_len(micro: &Micro) -> usize {
    BLOCK_TILES * copy_len(micro) + TILE
}

/// Elements of the copy of a part of a tile of A.
fn copy_len(micro: &Micro) -> usize {
    micro.mr * COPY_ROW
}

/// Tiles of A that one panel of B is multiplied with, one after the other: with the widest panel 96 KiB of A lie in the
/// second-level cache, and the panel in the first.
const BLOCK_TILES: usize = 8;

/// Distance of copied rows of A: not a multiple of [`CACHE_PERIOD`].
const COPY_ROW: usize = KC + 16;

/// What becomes of sums instead of C.
#[derive(Clone, Copy)]
pub(crate) struct Finish<'a> {
    /// Stores a tile of sums, whose rows are `nr` apart: rows from the first number on, columns from the second on, so
    /// many of each. [`store_tile`] does the last part of it.
    pub store: &'a dyn Fn(&mut [f32], usize, usize, (usize, usize)),
    /// What a micro-kernel can do by itself to `nr` whole columns instead, which then are C: for the tile whose first
    /// row and column these are.
    pub end: Option<&'a dyn Fn(usize, usize) -> End>,
}

/// Writes rows of sums, `nr` apart, to C from row `m` and column `n` on.
///
/// # Safety
/// C is valid there, and nobody else touches it.
pub(crate) unsafe fn store_tile(
    tile: &[f32],
    nr: usize,
    target: Target,
    (m, n): (usize, usize),
    (rows, columns): (usize, usize),
) {
    for (row, line) in tile.chunks_exact(nr).enumerate().take(rows) {
        // SAFETY: the caller's promise.
        unsafe {
            let to = target.start.wrapping_add((m + row) * target.row + n);
            std::ptr::copy_nonoverlapping(line[..columns].as_ptr(), to, columns);
        }
    }
}

/// Multiplies rows `m0..m1` of A (`m0` a multiple of [`Micro::mr`]) with the panels `p0..p1` of B, whose columns are `n` in all.
///
/// `panel(p, k)` gives the packed rows from `k` on of panel `p` (a multiple of [`KC`] on), after `ready(k)` was
/// called for that block: a driver that packs on the fly does so there. Without it panels are whole. `panel` is also
/// asked for the next block, where it may give any address: that is prefetched, never read.
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
    let (copies, tile) = scratch.split_at_mut(BLOCK_TILES * copy_len(micro));
    let mut depth = 0;
    // A few rows read each panel once: from its start to its end, as memory gives it best.
    let streams = m1 - m0 <= FEW_ROWS && ready.is_none();
    let block = if streams { usize::MAX } else { KC };
    loop {
        let length = block.min(k - depth);
        let (first, last) = (depth == 0, depth + length >= k);
        let runs = [(0, length)];
        if let Some(ready) = &mut ready {
            ready(depth);
        }
        let mut first_row = m0;
        while first_row < m1 {
            let end_row = m1.min(first_row + BLOCK_TILES * micro.mr);
            let tiles = (end_row - first_row).div_ceil(micro.mr);
            let mut parts = [(std::ptr::null(), 0, 0); BLOCK_TILES];
            for (t, (part, copy)) in
                parts.iter_mut().zip(copies.chunks_exact_mut(copy_len(micro))).enumerate().take(tiles)
            {
                let m = first_row + t * micro.mr;
                let copy = (p1 - p0 > 1).then_some(copy);
                // SAFETY: rows of A that are there, from the start of a tile on, and columns of this block.
                *part = unsafe { left.part(micro, (m, micro.mr.min(end_row - m)), (depth, length, k), copy) };
            }
            for p in p0..p1 {
                let column = p * micro.nr;
                let b = panel(p, depth);
                // The next panel comes meanwhile; the last one is followed by the first again, perhaps of the next block.
                let next = match p + 1 < p1 {
                    true => panel(p + 1, depth),
                    false if end_row < m1 || last => panel(p0, depth),
                    false => panel(p0, depth + length),
                };
                let columns = micro.nr.min(n - column);
                for (t, &a) in parts[..tiles].iter().enumerate() {
                    let m = first_row + t * micro.mr;
                    let rows = micro.mr.min(end_row - m);
                    let ahead = match streams {
                        true => Ahead::stream(micro, b),
                        false => Ahead::share(next, length * micro.nr, (t, tiles), length),
                    };
                    // SAFETY: the caller's promises; the tile buffer holds mr x nr elements.
                    unsafe {
                        // Its start may lie before what there is of it.
                        let c = target.start.wrapping_add(m * target.row + column);
                        let mut product = Product { ahead, ..Product::new(&runs, a, b, (c, target.row)) };
                        if !first {
                            product.sums = (c.cast_const(), target.row);
                        }
                        let whole = columns == micro.nr;
                        let finish = finish.filter(|_| last);
                        if let Some(end) = finish.and_then(|finish| finish.end).filter(|_| whole) {
                            product.end = Some(end(m, column));
                        } else if !whole || finish.is_some() {
                            product.c = (tile.as_mut_ptr(), micro.nr);
                        }
                        if product.c.0 == c {
                            micro.tile(rows, &product);
                            continue;
                        }
                        if !first && !whole {
                            for row in 0..rows {
                                let to = tile.as_mut_ptr().add(row * micro.nr);
                                std::ptr::copy_nonoverlapping(c.add(row * target.row), to, columns);
                            }
                            product.sums = (tile.as_ptr(), micro.nr);
                        }
                        micro.tile(rows, &product);
                        match finish {
                            Some(finish) => (finish.store)(tile, m, column, (rows, columns)),
                            None => store_tile(tile, micro.nr, target, (m, column), (rows, columns)),
                        }
                    }
                }
            }
            first_row = end_row;
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
    fn sums_are_finished_in_registers() {
        let depth = 37;
        for isa in Isa::available() {
            let micro = Micro::new(isa);
            for rows in 1..=micro.mr {
                let (a, b) = (numbers(rows * depth, 1), numbers(micro.nr * depth, 2));
                let (bias, mut sums) = (numbers(micro.nr, 3), numbers(rows * micro.nr, 4));
                let (pitch, mut residual) = (micro.nr + 3, numbers(rows * (micro.nr + 3), 5));
                (sums[0], residual[1]) = (f32::NAN, f32::NAN);
                // Row-major A, and A in tiles, each in three runs.
                for (row, column) in [(depth, 1), (1, rows)] {
                    let runs = [(0, 16), (16 * column, 1), (17 * column, depth - 17)];
                    for (with_bias, with_residual, with_sums) in
                        [(true, true, true), (false, true, false), (true, false, true)]
                    {
                        let or_null = |is_there: bool, numbers: &[f32]| {
                            if is_there { numbers.as_ptr() } else { std::ptr::null() }
                        };
                        let mut c = vec![7.0; rows * pitch];
                        let product = Product {
                            sums: (or_null(with_sums, &sums), micro.nr),
                            end: Some(End {
                                bias: or_null(with_bias, &bias),
                                residual: or_null(with_residual, &residual),
                                low: -20.0,
                                high: 30.0,
                            }),
                            ..Product::new(&runs, (a.as_ptr(), row, column), b.as_ptr(), (c.as_mut_ptr(), pitch))
                        };
                        // SAFETY: the operands have those sizes.
                        unsafe { micro.tile(rows, &product) };
                        for (at, &got) in c.iter().enumerate() {
                            let (i, j) = (at / pitch, at % pitch);
                            if j >= micro.nr {
                                assert_eq!(got, 7.0, "{} {rows} rows: between rows", isa.name());
                                continue;
                            }
                            let mut want: f32 = (0..depth).map(|k| a[i * row + k * column] * b[k * micro.nr + j]).sum();
                            want += if with_sums { sums[i * micro.nr + j] } else { 0.0 };
                            want += if with_bias { bias[j] } else { 0.0 };
                            want += if with_residual { residual[at] } else { 0.0 };
                            let want = if want.is_nan() { want } else { want.clamp(-20.0, 30.0) };
                            let same = got == want || got.is_nan() && want.is_nan();
                            assert!(same, "{} {rows} rows at ({i}, {j}): {got} instead of {want}", isa.name());
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn tiles_are_copied_where_that_is_said() {
        let micro = Micro::new(Isa::detect());
        let (far, near, rows) = (CACHE_PERIOD / size_of::<f32>(), 24, micro.mr.max(FEW_ROWS + 1));
        let a = numbers(rows * far, 1);
        let is_copied = |row: usize, rows: usize, copies: Copies| {
            let mut copy = vec![0.0; copy_len(&micro)];
            let left = Left::Strided { start: a.as_ptr(), row, column: 1, copies };
            // SAFETY: the operand has those rows, whose first numbers are taken.
            let (start, ..) = unsafe { left.part(&micro, (0, rows), (0, near, near), Some(&mut copy)) };
            start != a.as_ptr()
        };
        assert_eq!([far, near].map(|row| is_copied(row, micro.mr, Copies::WherePays)), [true, false]);
        assert_eq!([far, near].map(|row| is_copied(row, micro.mr, Copies::Never)), [false; 2]);
        assert_eq!([far, near].map(|row| is_copied(row, micro.mr, Copies::Always)), [true; 2]);
        assert!(!is_copied(far, FEW_ROWS, Copies::Always), "a stream of whole rows has no room in the copy");
    }

    #[test]
    fn columns_are_packed_as_they_lie() {
        let micro = Micro::new(Isa::detect());
        let sizes =
            [(1, 1), (3, 3), (4, 4), (6, 3), (5, 9), (micro.nr, 64), (micro.nr + 7, 30), (2 * micro.nr + 4, 257)];
        for ((n, k), apart) in sizes.into_iter().flat_map(|size| [(size, 0), (size, 5)]) {
            let b = numbers((n + apart) * (k + apart), 3);
            // Row-major, and transposed, with room between rows.
            for strides in [(n + apart, 1), (1, k + apart), (2, 3)] {
                if (k - 1) * strides.0 + (n - 1) * strides.1 >= b.len() {
                    continue;
                }
                let mut packed = vec![f32::NAN; panels_len(&micro, n, k)];
                // SAFETY: its last element lies inside (just checked).
                unsafe { pack_columns(&micro, b.as_ptr(), strides, (n, k), &mut packed) };
                for (at, &got) in packed.iter().enumerate() {
                    let (panel, depth, column) = (at / (micro.nr * k), at / micro.nr % k, at % micro.nr);
                    let column = panel * micro.nr + column;
                    let want = if column < n { b[depth * strides.0 + column * strides.1] } else { 0.0 };
                    assert_eq!(got, want, "{n} columns, {k} deep, {strides:?}: at ({depth}, {column})");
                }
            }
        }
    }

    #[test]
    fn every_micro_kernel_agrees_with_the_definition() {
        let sizes = [(1, 1, 1), (1, 33, 300), (5, 7, 3), (12, 32, 256), (13, 65, 257), (30, 100, 0), (25, 31, 600)];
        for isa in Isa::available() {
            let micro = Micro::new(isa);
            for (m, n, k) in sizes {
                let every = [Copies::WherePays, Copies::Never, Copies::Always];
                for (transposed, copies) in [false, true].into_iter().flat_map(|way| every.map(|copies| (way, copies)))
                {
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
                            Left::Strided { start: a.as_ptr(), row, column, copies },
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
