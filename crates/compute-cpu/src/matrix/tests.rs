use super::*;
use crate::Isa;
use crate::real::Converts;

fn kinds<F: Factor>() -> Vec<MatrixUnit<F>> {
    #[allow(unused_mut, reason = "other processors need no emulator")]
    let mut kinds = MatrixUnit::available();
    #[cfg(target_arch = "aarch64")]
    if !F::DTYPE.is_float() && sme::is_available() && sme::integers_are_half_emulated() {
        println!("skipped: sme-int8, of which this emulator computes half of the sums");
        kinds.retain(|unit| unit.0 != Kind::Sme);
    }
    let names: Vec<_> = kinds.iter().map(|kind| kind.name()).collect();
    println!("matrix units here: {names:?}");
    [MatrixUnit::PORTABLE].into_iter().chain(kinds).collect()
}

/// Small integers, so that every order of summation gives the same sum.
fn numbers(count: usize, seed: usize) -> Vec<f32> {
    (0..count).map(|i| ((i * 7 + seed * 13) % 11) as f32 - 5.0).collect()
}

/// Integers of the whole range, the extreme ones too.
fn integers<T>(count: usize, seed: usize, from: impl Fn(u8) -> T) -> Vec<T> {
    (0..count).map(|i| from(if i.is_multiple_of(7) { 128 } else { (i * 151 + seed * 37) as u8 })).collect()
}

/// All sums of a product, row by row.
struct Collected<S> {
    sums: Vec<S>,
    columns: usize,
    /// The first row and the panel of each block, in the order in which they were stored.
    blocks: Vec<(usize, usize)>,
    /// What the sums of each column of whole panels begin with, where it is not zero.
    begin: Vec<S>,
}

impl<S: Copy + Default> Collected<S> {
    fn new((m, n): (usize, usize), begin: Vec<S>) -> Collected<S> {
        Collected { sums: vec![S::default(); m * n], columns: n, blocks: Vec::new(), begin }
    }
}

impl<S: Copy> Sink<S> for Collected<S> {
    fn begins(&self) -> bool {
        !self.begin.is_empty()
    }

    fn begin(&mut self, panel: usize) -> Begin<S> {
        Begin::row(self.begin[panel * BLOCK..].as_ptr())
    }

    fn store(&mut self, sums: &mut Sums<S>, (row, p): (usize, usize), rows: usize) {
        self.blocks.push((row, p));
        for r in 0..rows {
            for column in p * BLOCK..self.columns.min((p + 1) * BLOCK) {
                self.sums[(row + r) * self.columns + column] = sums.0[r * BLOCK + column % BLOCK];
            }
        }
    }

    fn ends(&mut self, _: (usize, usize), _: usize) -> Option<&Ends> {
        None
    }

    fn ends_later(&mut self, _: (usize, usize), _: usize) -> Option<&super::Later> {
        None
    }
}

/// Multiplies operands of every layout on every unit; `fill` is garbage that would show wherever zeros are
/// missing, `product` the definition's.
fn check<F, L, R>(
    operands: &dyn Fn(usize, usize, usize) -> (Vec<L>, Vec<R>),
    (fill, fill_right): (F, F::Right),
    product: &dyn Fn(L, R) -> F::Sum,
    sum: &dyn Fn(&mut dyn Iterator<Item = F::Sum>) -> F::Sum,
    first: fn(usize) -> F::Sum,
) where
    F: Factor,
    L: Converts<F>,
    R: Converts<F::Right>,
    F::Sum: PartialEq + std::fmt::Debug,
{
    let kinds = kinds::<F>();
    let isa = Isa::detect();
    let sizes = [
        (1, 1, 1),
        (16, 32, 32),
        (17, 33, 31),
        (32, 64, 64),
        (33, 5, 513),
        (70, 130, 1100),
        (100, 70, 64),
        (50, 70, 128),
        (45, 24, 70),
        (70, 24, 3000),
        (20, 55, 96),
        (3, 40, 0),
    ];
    let cases =
        sizes.into_iter().flat_map(|size| [(size, false, Outer::Panels), (size, true, Outer::RowsOfNearPanels)]);
    let cases = cases.chain(sizes.map(|size| (size, false, Outer::Rows)));
    for ((m, n, k), transposed, outer) in cases {
        let (a, b) = operands(m, n, k);
        let (a_strides, b_strides) = if transposed { ((1, m), (1, k)) } else { ((k, 1), (n, 1)) };
        let at = |strides: (usize, usize), i: usize, j: usize| i * strides.0 + j * strides.1;
        let element = |index: usize| {
            let (i, j) = (index / n, index % n);
            sum(&mut (0..k).map(|p| product(a[at(a_strides, i, p)], b[at(b_strides, p, j)])))
        };
        let want: Vec<F::Sum> = (0..m * n).map(element).collect();
        let steps = k.div_ceil(F::STEP);
        let mut left = vec![fill; tiles_len::<F>(m, k)];
        let mut right = vec![fill_right; panel_len::<F::Right>(k) * n.div_ceil(BLOCK)];
        // SAFETY: the operands have those sizes.
        unsafe {
            let from = LeftRows { start: a.as_ptr(), row: a_strides.0, column: a_strides.1, rows: m, k };
            pack_tiles::<F, L>(isa, from, &mut left);
            let from = Panels { start: b.as_ptr(), row: b_strides.0, column: b_strides.1, n, k };
            for (p, panel) in right.chunks_exact_mut(panel_len::<F::Right>(k).max(1)).enumerate() {
                pack_panel::<F::Right, R>(isa, &from, p * BLOCK, panel);
            }
        }
        let offsets: Vec<usize> = (0..steps).map(|step| step * TILE * STEP_BYTES).collect();
        let steps_in_lines: Vec<usize> = (0..steps).map(|step| step * STEP_BYTES).collect();
        let depths = depths::<F>(k, 1);
        let at_row = |row: usize, p: usize| a[at(a_strides, row, p)];
        let tiles = Rows::tiles(left.as_ptr().cast(), &offsets, m);
        let rows = Rows { line_bytes: steps * TILE * STEP_BYTES, depths: &depths, ..tiles };
        let begin: Vec<F::Sum> = (0..n.next_multiple_of(BLOCK)).map(first).collect();
        for &matrix in &kinds {
            let mut lefts = vec![rows];
            if !matrix.takes_lines() && steps > 0 {
                // Rows stay while panels stream past.
                lefts.push(Rows { stays: true, ..rows });
            }
            // Two tiles, a tile of garbage, and so on.
            let tile = steps * TILE * F::STEP;
            let mut in_runs = vec![fill; left.len().div_ceil(2 * tile.max(1)) * 3 * tile];
            if !matrix.takes_lines() && steps > 0 {
                for (two, to) in left.chunks(2 * tile).zip(in_runs.chunks_exact_mut(3 * tile)) {
                    to[..two.len()].copy_from_slice(two);
                }
                let runs = Some((2, 3 * tile * size_of::<F>()));
                lefts.push(Rows { start: in_runs.as_ptr().cast(), runs, ..rows });
            }
            let (pitch, mut copies) = (steps * F::STEP + F::GROUP, Vec::new());
            let lines: &[usize] = if matrix.takes_lines() { &[1, 7, 9, 40] } else { &[] };
            for &line in lines {
                copies.push((line, in_lines(isa, &at_row, (m, k), (line, pitch), fill)));
            }
            for (line, copy) in &copies {
                let (pitch, block) = (pitch * size_of::<F>(), block_rows(*line));
                // A line is followed by two rows of garbage.
                let line_bytes = (line + 2) * pitch;
                let offsets = &steps_in_lines;
                lefts.push(Rows {
                    start: copy.as_ptr().cast(),
                    offsets,
                    pitch,
                    line: *line,
                    line_bytes,
                    block,
                    ..rows
                });
            }
            // Whole steps are read where they lie; the last rows, which are no whole tile, from a copy.
            let (rows_between, apart) = (m / TILE * TILE, k.next_multiple_of(F::STEP) + F::STEP);
            let line = |from: usize| in_lines(isa, &|row, p| at_row(from + row, p), (m - from, k), (m, apart), fill);
            let mut ends = vec![fill; TILE * apart];
            let (where_they_lie, last) = (line(0), line(rows_between));
            if !matrix.takes_lines() && k.is_multiple_of(F::STEP) && k > 0 {
                ends[..(m - rows_between) * apart].copy_from_slice(&last[..(m - rows_between) * apart]);
                let pitch = apart * size_of::<F>();
                lefts.push(Rows {
                    start: where_they_lie.as_ptr().cast(),
                    offsets: &steps_in_lines,
                    pitch,
                    line_bytes: TILE * pitch,
                    seen: Seen { pass: 1, whole: 1 },
                    last_line: (rows_between < m).then(|| ends.as_ptr().cast()),
                    ..rows
                });
            }
            for (left, begin) in lefts.iter().flat_map(|left| [(left, Vec::new()), (left, begin.clone())]) {
                let mut collected = Collected::new((m, n), begin);
                let at_once = left.stays || outer == Outer::Rows;
                let mut sums = vec![Sums::default(); sums_needed(matrix, m.div_ceil(left.block), steps, at_once)];
                // SAFETY: the operands are packed in those sizes.
                unsafe {
                    multiply(
                        matrix,
                        left,
                        (0, n.div_ceil(BLOCK)),
                        &|p| (right.as_ptr().add(p * panel_len::<F::Right>(k)).cast(), BLOCK.min(n - p * BLOCK)),
                        outer,
                        &mut sums,
                        &mut collected,
                    );
                }
                for (index, (got, want)) in collected.sums.iter().zip(&want).enumerate() {
                    let (name, line, at) = (matrix.name(), left.line, (index / n, index % n));
                    let first = collected.begin.get(at.1).copied();
                    let want = first.map_or(*want, |first| sum(&mut [first, *want].into_iter()));
                    assert_eq!(*got, want, "{name} {m}x{n}x{k} in lines of {line} at {at:?} on {first:?}");
                }
            }
        }
    }
}

/// Rows of `k` factors in lines of so many, `pitch` numbers apart, with garbage between them and behind each line.
fn in_lines<F: Factor, T: Converts<F>>(
    isa: Isa,
    element: &dyn Fn(usize, usize) -> T,
    (m, k): (usize, usize),
    (line, pitch): (usize, usize),
    fill: F,
) -> Vec<F> {
    let mut copy = vec![fill; (m.div_ceil(line) * (line + 2)) * pitch + F::STEP];
    for row in 0..m {
        let numbers: Vec<T> = (0..k).map(|p| element(row, p)).collect();
        let to = &mut copy[(row / line * (line + 2) + row % line) * pitch..][..k.next_multiple_of(F::GROUP)];
        T::convert_all(isa, &numbers, &mut to[..k]);
        to[k..].fill(F::zeroed());
    }
    copy
}

#[test]
fn steps_have_an_order_in_which_a_pass_has_all_taps() {
    for (steps, taps) in [(1, 1), (40, 1), (2, 9), (5, 9), (3, 25), (7, 4), (0, 9), (3, 0)] {
        let order: Vec<_> = order(steps, taps).flat_map(|(tap, part)| part.map(move |step| (tap, step))).collect();
        let mut sorted = order.clone();
        sorted.sort_unstable();
        let all: Vec<_> = (0..taps).flat_map(|tap| (0..steps).map(move |step| (tap, step))).collect();
        assert_eq!(sorted, all, "each step of each tap once: {steps} {taps}");
        let first: std::collections::HashSet<_> = order.iter().take(PASS_STEPS).map(|&(tap, _)| tap).collect();
        assert!(first.len() == taps.min(PASS_STEPS) || steps == 0, "{steps} {taps}");
    }
    assert_eq!(depths::<bf16>(40, 2), [16, 4, 16, 4]);
    assert_eq!(depths::<bf16>(32 * 9 + 2, 2)[..10], [16, 16, 16, 16, 16, 16, 16, 16, 16, 16]);
    assert_eq!(depths::<bf16>(32 * 9 + 2, 2)[18..], [1, 1], "what is left comes after all that is whole");
}

#[test]
fn the_outer_loop_goes_over_what_is_said() {
    // Few steps, and so many that panels come in passes and do not stay near.
    for (matrix, k) in kinds::<bf16>().into_iter().flat_map(|matrix| [64, 8192].map(|k| (matrix, k))) {
        let (m, n) = (5 * BLOCK, 3 * BLOCK);
        let steps = k / bf16::STEP;
        let left = vec![bf16::ONE; tiles_len::<bf16>(m, k)];
        let panel = vec![bf16::ONE; panel_len::<bf16>(k)];
        let offsets: Vec<usize> = (0..steps).map(|step| step * TILE * STEP_BYTES).collect();
        let depths = depths::<bf16>(k, 1);
        let tiles = Rows::tiles(left.as_ptr().cast(), &offsets, m);
        let rows = Rows { line_bytes: steps * TILE * STEP_BYTES, depths: &depths, ..tiles };
        let blocks = |outer: Outer| {
            let mut collected = Collected::new((m, n), Vec::new());
            let mut sums = vec![Sums::default(); sums_needed(matrix, m / BLOCK, steps, outer == Outer::Rows)];
            // SAFETY: the operands have those sizes; every panel is the same.
            unsafe {
                multiply(matrix, &rows, (0, 3), &|_| (panel.as_ptr().cast(), BLOCK), outer, &mut sums, &mut collected);
            }
            assert!(collected.sums.iter().all(|&sum| sum == k as f32), "{} {k} {outer:?}", matrix.name());
            collected.blocks
        };
        let pairs = || (0..5).map(|pair| pair * BLOCK);
        let by_rows: Vec<_> = pairs().flat_map(|row| (0..3).map(move |p| (row, p))).collect();
        let by_panels: Vec<_> = (0..3).flat_map(|p| pairs().map(move |row| (row, p))).collect();
        assert_eq!(blocks(Outer::Rows), by_rows, "{} {k}", matrix.name());
        if k > 64 {
            // Panels of few steps share a pass.
            assert_eq!(blocks(Outer::Panels), by_panels, "{} {k}", matrix.name());
        }
        let near = if k == 64 { &by_rows } else { &by_panels };
        assert_eq!(blocks(Outer::RowsOfNearPanels), *near, "{} {k}", matrix.name());
    }
}

#[test]
fn fewer_rows_have_no_more_blocks() {
    let blocks = |rows: usize| rows.div_ceil(block_rows(rows));
    for rows in 1..2048 {
        assert!((1..=BLOCK).contains(&block_rows(rows)), "{rows}");
        assert!(blocks(rows) <= blocks(rows + 1), "sums for {} rows are too few for {rows}", rows + 1);
    }
}

/// The emulator is told which vectors to have: whether it has them, its script reads here.
#[cfg(target_arch = "aarch64")]
#[test]
fn streaming_vectors_have_a_length() {
    let bits = sme::is_available().then(sme::vector_bits);
    println!("streaming vectors here: {} bits", bits.unwrap_or(0));
    assert!(bits.is_none_or(|bits| (128..=2048).contains(&bits)));
}

#[test]
fn products_of_bf16_agree_with_the_definition() {
    let operands = |m: usize, n: usize, k: usize| (numbers(m * k, 1), numbers(k * n, 2));
    check::<bf16, f32, f32>(&operands, (bf16::NAN, bf16::NAN), &|a, b| a * b, &|terms| terms.sum(), |at| {
        at as f32 - 9.0
    });
}

#[test]
fn products_of_f16_agree_with_the_definition() {
    let operands = |m: usize, n: usize, k: usize| (numbers(m * k, 1), numbers(k * n, 2));
    check::<f16, f32, f32>(&operands, (f16::NAN, f16::NAN), &|a, b| a * b, &|terms| terms.sum(), |at| at as f32 - 9.0);
}

/// Every height of strips, and every column, row and rest of a step.
#[test]
fn products_of_few_rows_of_f16_agree_with_the_definition() {
    let isa = Isa::detect();
    for matrix in kinds::<f16>() {
        for (m, n) in (1..=9).flat_map(|m| (1..=40).map(move |n| (m, n))) {
            let k = 1 + (m * 29 + n * 13) % 70;
            let (a, b) = (numbers(m * k, m), numbers(k * n, n));
            let mut left = vec![f16::NAN; tiles_len::<f16>(m, k)];
            let mut right = vec![f16::NAN; panel_len::<f16>(k) * n.div_ceil(BLOCK)];
            // SAFETY: the operands have those sizes.
            unsafe {
                pack_tiles::<f16, f32>(isa, LeftRows { start: a.as_ptr(), row: k, column: 1, rows: m, k }, &mut left);
                let from = Panels { start: b.as_ptr(), row: n, column: 1, n, k };
                for (p, panel) in right.chunks_exact_mut(panel_len::<f16>(k)).enumerate() {
                    pack_panel::<f16, f32>(isa, &from, p * BLOCK, panel);
                }
            }
            let offsets: Vec<usize> = (0..k.div_ceil(f16::STEP)).map(|step| step * TILE * STEP_BYTES).collect();
            let depths = depths::<f16>(k, 1);
            let tiles = Rows::tiles(left.as_ptr().cast(), &offsets, m);
            let rows = Rows { line_bytes: offsets.len() * TILE * STEP_BYTES, depths: &depths, ..tiles };
            let mut collected =
                Collected { sums: vec![f32::NAN; m * n], columns: n, blocks: Vec::new(), begin: Vec::new() };
            let mut sums = vec![Sums::default(); sums_needed(matrix, 1, offsets.len(), false)];
            let panel = |p: usize| (right[p * panel_len::<f16>(k)..].as_ptr().cast(), BLOCK.min(n - p * BLOCK));
            let panels = (0, n.div_ceil(BLOCK));
            // SAFETY: the operands are packed in those sizes.
            unsafe { multiply(matrix, &rows, panels, &panel, Outer::Panels, &mut sums, &mut collected) };
            for (index, &got) in collected.sums.iter().enumerate() {
                let (i, j) = (index / n, index % n);
                let want: f32 = (0..k).map(|p| a[i * k + p] * b[p * n + j]).sum();
                assert_eq!(got, want, "{} {m}x{n}x{k} at ({i}, {j})", matrix.name());
            }
        }
    }
}

/// Numbers that f16 has and bf16 has not, those that have fewer bits than others, and what is beyond the largest.
#[test]
fn numbers_of_f16_are_multiplied_as_they_are() {
    for matrix in kinds::<f16>() {
        let largest = f16::MAX.to_f32();
        let cases = [
            (1.0 + 1.0 / 1024.0, 3.0, 3.0 + 3.0 / 1024.0),
            (largest, largest, largest * largest),
            (f16::from_bits(1).to_f32(), 1024.0, 2f32.powi(-14)),
            (f16::from_bits(1).to_f32(), f16::from_bits(3).to_f32(), 3.0 * 2f32.powi(-48)),
            (70_000.0, 1.0, f32::INFINITY),
            (f32::NEG_INFINITY, 0.0, f32::NAN),
        ];
        for (a, b, want) in cases {
            let mut left = vec![f16::ZERO; tiles_len::<f16>(1, 1)];
            let mut right = vec![f16::ZERO; panel_len::<f16>(1)];
            (left[0], right[0]) = (f16::from_f32(a), f16::from_f32(b));
            let offsets = [0];
            let rows = Rows { depths: &[1], ..Rows::tiles(left.as_ptr().cast(), &offsets, 1) };
            let mut collected = Collected { sums: vec![0.0], columns: 1, blocks: Vec::new(), begin: Vec::new() };
            let mut sums = vec![Sums::default(); sums_needed(matrix, 1, 1, false)];
            let panel = |_| (right.as_ptr().cast(), 1);
            // SAFETY: a tile and a panel of one step.
            unsafe { multiply(matrix, &rows, (0, 1), &panel, Outer::Panels, &mut sums, &mut collected) };
            let got = collected.sums[0];
            assert!(got == want || got.is_nan() && want.is_nan(), "{}: {a} · {b} is {got}", matrix.name());
        }
    }
}

#[test]
fn products_of_integers_agree_with_the_definition() {
    let weights = |count: usize| integers(count, 2, |byte| byte as i8);
    let unsigned = |m: usize, n: usize, k: usize| (integers(m * k, 1, |byte| byte), weights(k * n));
    let signed = |m: usize, n: usize, k: usize| (integers(m * k, 1, |byte| byte as i8), weights(k * n));
    let product = |a: i32, b: i8| a * i32::from(b);
    let first = |at: usize| at as i32 * 1001 - 70_000;
    check::<u8, u8, i8>(&unsigned, (77, 77), &|a, b| product(a.into(), b), &|terms| terms.sum(), first);
    check::<i8, i8, i8>(&signed, (77, 77), &|a, b| product(a.into(), b), &|terms| terms.sum(), first);
    // Signs are taken off where the unit has no instructions for them.
    check::<u8, i8, i8>(&signed, (77, 77), &|a, b| product(i32::from(a) + 128, b), &|terms| terms.sum(), first);
}

#[test]
fn peaks_are_measured() {
    fn measured<F: Factor>() {
        for matrix in MatrixUnit::<F>::available() {
            println!("{} of {:?}: {:.0} GFLOP/s", matrix.name(), F::DTYPE, matrix.peak() / 1e9);
            assert!(matrix.peak() > 0.0);
        }
        println!("fastest: {:?}", MatrixUnit::<F>::fastest());
    }
    measured::<bf16>();
    measured::<f16>();
    measured::<u8>();
    measured::<i8>();
}
