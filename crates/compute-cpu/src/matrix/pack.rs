//! Operands in the order in which blocks read them.
//!
//! Sources need no alignment: weights are packed from where they lie in the model's file.

use super::{BLOCK, Factor, GROUP_BYTES, STEP_BYTES, TILE, group, step};
use crate::Isa;
use crate::isa::multiversion;
use crate::real::Converts;
use halimede_tensor::Element;

/// Numbers of a line that are converted together: a step of 16 bits, half a step of 8.
const WHOLE: usize = 32;
/// Where fewer are left.
const PART: usize = 8;

/// Steps of a row that are packed before those of the next row.
const STEPS_TOGETHER: usize = 24;

/// Groups of a step.
const STEP_GROUPS: usize = STEP_BYTES / GROUP_BYTES;

/// Neighbours of the summed axis in a group, at most.
const GROUP_MAX: usize = GROUP_BYTES;

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
    let columns = BLOCK.min(from.n - first);
    let start = from.start.wrapping_add(first * from.column);
    let from = Panels { start, n: columns, ..*from };
    // Both read what the caller promises.
    match from.column {
        1 => pack_lines(isa, from, panel),
        _ => pack_columns(isa, from, panel),
    }
}

/// The whole panel from rows whose numbers are neighbours.
fn pack_lines<N: Element, T: Converts<N>>(isa: Isa, from: Panels<T>, panel: &mut [N]) {
    let is_plain = from.n == BLOCK && from.start.is_aligned() && T::DTYPE != N::DTYPE;
    let group = group::<N>();
    if !is_plain || group != 2 {
        return pack_any_lines(isa, from, panel);
    }
    let mut lines = [[N::zeroed(); BLOCK]; 2];
    let (whole, rest) = panel.split_at_mut(from.k / group * group * BLOCK);
    for (index, packed) in whole.chunks_exact_mut(group * BLOCK).enumerate() {
        for (k, line) in (group * index..).zip(&mut lines) {
            // SAFETY: `pack_panel` is called for an operand that has these numbers, which are aligned.
            let source = unsafe { std::slice::from_raw_parts(from.start.wrapping_add(k * from.row), BLOCK) };
            T::convert_all(isa, source, line);
        }
        let [a, b] = &lines;
        interleave_two(isa, bytemuck::cast_slice(a), bytemuck::cast_slice(b), bytemuck::cast_slice_mut(packed));
    }
    let done = from.k / group * group;
    let rest_of = Panels { start: from.start.wrapping_add(done * from.row), k: from.k - done, ..from };
    pack_any_lines(isa, rest_of, rest);
}

multiversion! {
    /// The same of rows of any form.
    fn pack_any_lines<N: Element, T: Converts<N>>(from: Panels<T>, panel: &mut [N]) = pack_each_line
}

#[inline(always)]
fn pack_each_line<N: Element, T: Converts<N>>(from: Panels<T>, panel: &mut [N]) {
    let group = group::<N>();
    let mut lines = [[N::zeroed(); BLOCK]; GROUP_MAX];
    let mut groups = panel.chunks_exact_mut(group * BLOCK).enumerate();
    for (index, packed) in groups.by_ref().take(from.k.div_ceil(group)) {
        for (line, k) in lines.iter_mut().zip(group * index..).take(group) {
            match k < from.k {
                // SAFETY: `pack_panel` is called for an operand that has these numbers.
                true => unsafe { convert(from.start.wrapping_add(k * from.row), 1, from.n, line) },
                false => line.fill(N::zeroed()),
            }
        }
        let packed: &mut [u32] = bytemuck::cast_slice_mut(packed);
        let [a, b, c, d] = &lines;
        match group {
            2 => interleave_pairs(bytemuck::cast_slice(a), bytemuck::cast_slice(b), packed),
            _ => interleave_fours([a, b, c, d].map(|line| bytemuck::cast_slice(line)), packed),
        }
    }
    groups.for_each(|(_, packed)| packed.fill(N::zeroed()));
}

multiversion! {
    fn interleave_two(a: &[u16], b: &[u16], packed: &mut [u32]) = interleave_pairs
}

/// The whole panel a column at a time, which reads memory in order where the operand is transposed.
fn pack_columns<N: Element, T: Converts<N>>(isa: Isa, from: Panels<T>, panel: &mut [N]) {
    let mut lines = [[0u32; STEP_GROUPS]; BLOCK];
    for (k, packed) in (0..from.k).step_by(step::<N>()).zip(panel.chunks_exact_mut(panel_step::<N>())) {
        let start = from.start.wrapping_add(k * from.row);
        let from = Panels { start, k: step::<N>().min(from.k - k), ..from };
        convert_columns(isa, from, &mut lines);
        transpose(isa, &lines, bytemuck::cast_slice_mut(packed));
    }
}

/// A step of each column as a line. The neighbours of a group move as one.
fn convert_columns<N: Element, T: Converts<N>>(isa: Isa, from: Panels<T>, lines: &mut [[u32; STEP_GROUPS]; BLOCK]) {
    if from.row != 1 || from.k < step::<N>() || !from.start.is_aligned() || T::DTYPE == N::DTYPE {
        return convert_any_columns(isa, from, lines);
    }
    for (column, line) in lines[..from.n].iter_mut().enumerate() {
        // SAFETY: `pack_panel` is called for an operand that has these numbers, which are aligned.
        let source = unsafe { std::slice::from_raw_parts(from.start.wrapping_add(column * from.column), from.k) };
        T::convert_all(isa, source, bytemuck::cast_slice_mut(line));
    }
}

multiversion! {
    /// The same of columns of any form.
    fn convert_any_columns<N: Element, T: Converts<N>>(
        from: Panels<T>,
        lines: &mut [[u32; STEP_GROUPS]; BLOCK],
    ) = convert_each_column::<N, T>
}

#[inline(always)]
fn convert_each_column<N: Element, T: Converts<N>>(from: Panels<T>, lines: &mut [[u32; STEP_GROUPS]; BLOCK]) {
    for (column, line) in lines[..from.n].iter_mut().enumerate() {
        let source = from.start.wrapping_add(column * from.column);
        // SAFETY: as above.
        unsafe { convert::<N, T>(source, from.row, from.k, bytemuck::cast_slice_mut(line)) };
    }
}

/// Writes each column of the lines as a line.
fn transpose(isa: Isa, lines: &[[u32; STEP_GROUPS]; BLOCK], packed: &mut [u32]) {
    assert_eq!(packed.len(), STEP_GROUPS * BLOCK);
    #[cfg(target_arch = "x86_64")]
    if isa.has_avx512() {
        // SAFETY: the machine has AVX-512.
        return unsafe { transpose_avx512(lines, packed) };
    }
    let _ = isa;
    for (index, packed) in packed.chunks_exact_mut(BLOCK).enumerate() {
        for (group, line) in packed.iter_mut().zip(lines) {
            *group = line[index];
        }
    }
}

/// [`transpose`] by shuffling: of 16 lines, each is interleaved with the one 8 lines on, four times.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
fn transpose_avx512(lines: &[[u32; STEP_GROUPS]; BLOCK], packed: &mut [u32]) {
    use std::arch::x86_64 as x86;
    let lower = x86::_mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    let upper = x86::_mm512_setr_epi32(8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
    for (half, lines) in lines.chunks_exact(STEP_GROUPS).enumerate() {
        let mut registers = [x86::_mm512_setzero_si512(); STEP_GROUPS];
        for (register, line) in registers.iter_mut().zip(lines) {
            // SAFETY: a line fills a register.
            *register = unsafe { x86::_mm512_loadu_si512(line.as_ptr().cast()) };
        }
        for _ in 0..STEP_GROUPS.ilog2() {
            let before = registers;
            for line in 0..STEP_GROUPS / 2 {
                let (a, b) = (before[line], before[line + STEP_GROUPS / 2]);
                registers[2 * line] = x86::_mm512_permutex2var_epi32(a, lower, b);
                registers[2 * line + 1] = x86::_mm512_permutex2var_epi32(a, upper, b);
            }
        }
        for (line, register) in registers.into_iter().enumerate() {
            let packed = &mut packed[line * BLOCK + half * STEP_GROUPS..][..STEP_GROUPS];
            // SAFETY: as above.
            unsafe { x86::_mm512_storeu_si512(packed.as_mut_ptr().cast(), register) };
        }
    }
}

/// Converts `count` numbers that lie `apart`, and makes what is left of `line` zeros.
///
/// # Safety
/// They can be read, as bytes of any alignment; the line is not shorter.
#[inline(always)]
unsafe fn convert<N: Element, T: Converts<N>>(from: *const T, apart: usize, count: usize, line: &mut [N]) {
    let mut done = 0;
    // SAFETY: the caller's promise.
    unsafe {
        if apart == 1 {
            while done + WHOLE <= count {
                convert_part::<N, T, WHOLE>(from.add(done), &mut line[done..]);
                done += WHOLE;
            }
            while done + PART <= count {
                convert_part::<N, T, PART>(from.add(done), &mut line[done..]);
                done += PART;
            }
        }
        for (index, number) in line[..count].iter_mut().enumerate().skip(done) {
            *number = from.add(index * apart).read_unaligned().convert();
        }
    }
    line[count..].fill(N::zeroed());
}

/// Converts neighbours, all of which are read before the first is written: only then are they registers.
///
/// # Safety
/// As [`convert`].
#[inline(always)]
unsafe fn convert_part<N: Element, T: Converts<N>, const COUNT: usize>(from: *const T, line: &mut [N]) {
    // SAFETY: the caller's promise.
    let source = unsafe { from.cast::<[T; COUNT]>().read_unaligned() };
    for (number, source) in line[..COUNT].iter_mut().zip(source) {
        *number = source.convert();
    }
}

/// Writes the numbers of two lines in turns.
#[inline(always)]
fn interleave_pairs(a: &[u16], b: &[u16], packed: &mut [u32]) {
    let (a, b) = (&a[..packed.len()], &b[..packed.len()]);
    for at in 0..packed.len() {
        packed[at] = u32::from(a[at]) | u32::from(b[at]) << 16;
    }
}

/// Writes the numbers of four lines in turns.
#[inline(always)]
fn interleave_fours([a, b, c, d]: [&[u8]; 4], packed: &mut [u32]) {
    for (column, four) in packed.iter_mut().enumerate() {
        *four = u32::from_le_bytes([a[column], b[column], c[column], d[column]]);
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
    /// Steps of a row up to which it costs more to put it together number by number than to multiply it.
    const FEW_STEPS: usize = 4;
    let tile_len = TILE * from.k.next_multiple_of(F::STEP);
    let is_copied = T::DTYPE == F::DTYPE && from.column == 1 && from.k <= FEW_STEPS * F::STEP;
    // Behind the last number.
    let end = from.start.wrapping_add((from.rows.max(1) - 1) * from.row + from.k);
    for (first, tile) in (0..from.rows).step_by(TILE).zip(tiles.chunks_exact_mut(tile_len.max(1))) {
        let rows = TILE.min(from.rows - first);
        let last = from.start.wrapping_add((first + TILE - 1) * from.row + from.k.next_multiple_of(F::STEP));
        if is_copied && rows == TILE && last.addr() <= end.addr() {
            for (k, step) in (0..from.k).step_by(F::STEP).zip(tile.chunks_exact_mut(TILE * F::STEP)) {
                let kept = kept_bytes((from.k - k) * size_of::<F>());
                let mut source = from.start.wrapping_add(first * from.row + k);
                for line in step.chunks_exact_mut(F::STEP) {
                    // SAFETY: `pack_tiles` is called for an operand with these rows, and what lies behind them is
                    // theirs as far as the last number of the last row.
                    let step = unsafe { source.cast::<[u8; STEP_BYTES]>().read_unaligned() };
                    keep(&step, &kept, bytemuck::cast_slice_mut(line));
                    source = source.wrapping_add(from.row);
                }
            }
            continue;
        }
        // A few steps of each row at a time: neither what is read nor what is written lies too far apart.
        let parts = tile.chunks_mut(STEPS_TOGETHER * TILE * F::STEP);
        for (from_k, part) in (0..from.k).step_by(STEPS_TOGETHER * F::STEP).zip(parts) {
            for r in 0..TILE {
                for (index, step) in part.chunks_exact_mut(TILE * F::STEP).enumerate() {
                    let k = from_k + index * F::STEP;
                    let count = if r < rows { F::STEP.min(from.k - k) } else { 0 };
                    let source = from.start.wrapping_add((first + r) * from.row + k * from.column);
                    // SAFETY: `pack_tiles` is called for an operand that has these numbers.
                    unsafe { convert(source, from.column, count, &mut step[r * F::STEP..][..F::STEP]) };
                }
            }
        }
    }
}

/// Which bytes of a step count, so many from the first on.
#[inline(always)]
pub(crate) fn kept_bytes(count: usize) -> [u8; STEP_BYTES] {
    std::array::from_fn(|at| if at < count { 0xff } else { 0 })
}

/// A step of which only what is kept is not zero.
#[inline(always)]
pub(crate) fn keep(step: &[u8], kept: &[u8; STEP_BYTES], line: &mut [u8]) {
    let (step, line) = (&step[..STEP_BYTES], &mut line[..STEP_BYTES]);
    for at in 0..STEP_BYTES {
        line[at] = step[at] & kept[at];
    }
}
