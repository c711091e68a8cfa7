//! Blocks of integers in vectors of 256 bits, row by row.
//!
//! With AVX-VNNI each `vpdpbusd` adds the products of a group of rows of the panel to 8 sums.
//!
//! AVX2 has no exact product of bytes: `vpmaddubsw` cuts off sums of two that do not fit into 16 bits. What it has is
//! `vpmaddwd`, which multiplies numbers of 16 bits and adds neighbours, so that both operands are widened:
//!
//! ```text
//! for each 8 steps
//!     widen them of all rows of the strip                 once for all columns; they stay in the first-level cache
//!     for each 8 columns, 16 with few rows
//!         for each group of 4 rows of the panel
//!             b = its columns, widened                    4 columns a register, as they lie: no bytes change places
//!             sums of row r += vpmaddwd(4 numbers of row r, again and again, b)
//!         halves of each sum, which lie side by side, are added up
//! ```

use super::{Ahead, BLOCK, Begin, Block, GROUP_BYTES, Left, PANEL_STEP_BYTES, STEP_BYTES, strips};
use crate::prefetch;
use std::arch::x86_64::*;
use std::mem::MaybeUninit;

/// Rows of a strip: with two registers of columns 12 of the 16 hold sums.
pub(super) const STRIP: usize = 6;
/// Groups of a whole step.
const GROUPS: usize = STEP_BYTES / GROUP_BYTES;
/// Bytes of a group of all columns of a panel.
const GROUP_LINE: usize = GROUP_BYTES * BLOCK;
/// Steps whose rows are widened together.
const WIDENED_STEPS: usize = 8;
/// Groups from one row that was widened to the next: rows that lie so far apart are read from different banks.
const WIDENED_ROW: usize = WIDENED_STEPS * GROUPS + 1;

/// Multiplies its rows from the pointer on by the first so many columns of the panel, from the row of the block on that is
/// given. Meanwhile memory is asked for.
type Strip = unsafe fn(*const u8, &Panel<'_>, usize, &Ahead);

/// Strips of 1 to 6 rows.
pub(super) type Strips = [Strip; STRIP];

/// What all strips of a block multiply by, and their sums.
pub(super) struct Panel<'a> {
    left: &'a Left<'a>,
    start: *const u8,
    columns: usize,
    begin: Begin<i32>,
    to: *mut i32,
}

pub(super) static AVX2: Strips =
    [words::<1, 4>, words::<2, 4>, words::<3, 2>, words::<4, 2>, words::<5, 2>, words::<6, 2>];

pub(super) static VNNI: Strips =
    [bytes::<1, 4>, bytes::<2, 4>, bytes::<3, 4>, bytes::<4, 2>, bytes::<5, 2>, bytes::<6, 2>];

const HEIGHTS: [u8; BLOCK + 1] = strips::heights(STRIP);

/// # Safety
/// As [`super::Tiles::block`], on a machine with the strips' instructions.
pub(super) unsafe fn block(strips: &Strips, block: &Block<'_, u8>) {
    let &Block { ref left, panel: start, columns, rows, begin, to, ahead, .. } = block;
    let panel = Panel { left, start, columns, begin, to: to.cast() };
    strips::by_lines(left, rows, (&HEIGHTS, STRIP), ahead, |height, first, many, share| {
        for strip in 0..many.strips {
            let (rows, row) = (strip * height, many.row + strip * height);
            // SAFETY: the caller's promise for these rows; so few have a strip.
            unsafe { strips[height - 1](first.wrapping_add(rows * left.pitch), &panel, row, &share.of(strip)) };
        }
    });
}

/// Asks for what comes next beside a step.
#[inline(always)]
fn ask(ahead: &Ahead, step: usize) {
    for line in 0..ahead.lines {
        prefetch::to_second_level(ahead.start.wrapping_add(step * ahead.each + line * ahead.apart));
    }
}

/// Sums by `vpmaddwd`, in `V` registers of 4 columns. Counted loops, here and below: what iterators hand on may be compiled
/// without the instructions, as a call for each.
///
/// # Safety
/// As [`block`] for `R` rows, on a machine with AVX2.
#[target_feature(enable = "avx2")]
unsafe fn words<const R: usize, const V: usize>(first: *const u8, panel: &Panel<'_>, row: usize, ahead: &Ahead) {
    const COLUMNS: usize = 4;
    let left = panel.left;
    let mut widened = MaybeUninit::<[[i64; WIDENED_ROW]; R]>::uninit();
    let widened: *mut [i64; WIDENED_ROW] = widened.as_mut_ptr().cast();
    let depth = |step: usize| left.depths.get(step).map_or(GROUPS, |&depth| usize::from(depth));
    // SAFETY: the caller's promise, for every access below; groups are read once they were widened.
    unsafe {
        for from in (0..left.offsets.len()).step_by(WIDENED_STEPS) {
            let steps = &left.offsets[from..left.offsets.len().min(from + WIDENED_STEPS)];
            for (step, &offset) in steps.iter().enumerate() {
                ask(ahead, from + step);
                for r in 0..R {
                    let bytes = first.wrapping_add(offset).wrapping_add(r * left.pitch);
                    widen(bytes, depth(from + step), (&raw mut (*widened.add(r))[step * GROUPS]));
                }
            }
            let begin = if from > 0 { Begin::sums(panel.to.cast_const().cast()) } else { panel.begin };
            for column in (0..panel.columns).step_by(V * COLUMNS) {
                let mut sums = [[_mm256_setzero_si256(); V]; R];
                for step in 0..steps.len() {
                    let mut line = panel.start.add((from + step) * PANEL_STEP_BYTES + column * GROUP_BYTES);
                    let mut a = widened.cast::<i64>().add(step * GROUPS);
                    for _ in 0..depth(from + step) {
                        let mut b = [_mm256_setzero_si256(); V];
                        for v in 0..V {
                            b[v] = _mm256_cvtepi8_epi16(_mm_loadu_si128(line.add(v * 16).cast()));
                        }
                        for r in 0..R {
                            let a = _mm256_set1_epi64x(*a.add(r * WIDENED_ROW));
                            for v in 0..V {
                                sums[r][v] = _mm256_add_epi32(sums[r][v], _mm256_madd_epi16(a, b[v]));
                            }
                        }
                        (a, line) = (a.add(1), line.add(GROUP_LINE));
                    }
                }
                for r in 0..R {
                    for v in (0..V).step_by(2) {
                        let place = (row + r) * BLOCK + column + v * COLUMNS;
                        // Columns 0 1 4 5 2 3 6 7.
                        let sum = _mm256_hadd_epi32(sums[r][v], sums[r][v + 1]);
                        let mut sum = _mm256_permute4x64_epi64::<0b11_01_10_00>(sum);
                        if let Some(begin) = begin.of_row(row + r) {
                            let begin = begin.add(column + v * COLUMNS);
                            sum = _mm256_add_epi32(sum, _mm256_loadu_si256(begin.cast()));
                        }
                        _mm256_storeu_si256(panel.to.add(place).cast(), sum);
                    }
                }
            }
        }
    }
}

/// Writes so many groups of bytes as numbers of 16 bits.
///
/// # Safety
/// The groups, at most those of a step, can be read, and written where they go, on a machine with AVX2.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn widen(bytes: *const u8, groups: usize, to: *mut i64) {
    // SAFETY: the caller's promise, for every access below.
    unsafe {
        let mut group = 0;
        while group + 4 <= groups {
            let wide = _mm256_cvtepu8_epi16(_mm_loadu_si128(bytes.add(group * GROUP_BYTES).cast()));
            _mm256_storeu_si256(to.add(group).cast(), wide);
            group += 4;
        }
        while group < groups {
            let four = _mm_cvtsi32_si128(bytes.add(group * GROUP_BYTES).cast::<i32>().read_unaligned());
            _mm_storel_epi64(to.add(group).cast(), _mm_cvtepu8_epi16(four));
            group += 1;
        }
    }
}

/// Sums by `vpdpbusd`, in `V` registers of 8 columns.
///
/// # Safety
/// As [`block`] for `R` rows, on a machine with AVX-VNNI.
#[target_feature(enable = "avx2,avxvnni")]
unsafe fn bytes<const R: usize, const V: usize>(first: *const u8, panel: &Panel<'_>, row: usize, ahead: &Ahead) {
    const COLUMNS: usize = 8;
    let Panel { left, begin, to, .. } = *panel;
    // SAFETY: the caller's promise, for every access below.
    unsafe {
        for column in (0..panel.columns).step_by(V * COLUMNS) {
            let mut sums = [[_mm256_setzero_si256(); V]; R];
            for r in 0..R {
                if let Some(begin) = begin.of_row(row + r) {
                    for v in 0..V {
                        sums[r][v] = _mm256_loadu_si256(begin.add(column + v * COLUMNS).cast());
                    }
                }
            }
            for (step, &offset) in left.offsets.iter().enumerate() {
                if column == 0 {
                    ask(ahead, step);
                }
                let mut line = panel.start.add(step * PANEL_STEP_BYTES + column * GROUP_BYTES);
                let mut a = first.wrapping_add(offset);
                for _ in 0..left.depths.get(step).map_or(GROUPS, |&depth| usize::from(depth)) {
                    let mut b = [_mm256_setzero_si256(); V];
                    for v in 0..V {
                        b[v] = _mm256_loadu_si256(line.add(v * size_of::<__m256i>()).cast());
                    }
                    for r in 0..R {
                        let group = a.wrapping_add(r * left.pitch).cast::<i32>().read_unaligned();
                        let a = _mm256_set1_epi32(group);
                        for v in 0..V {
                            sums[r][v] = _mm256_dpbusd_avx_epi32(sums[r][v], a, b[v]);
                        }
                    }
                    a = a.wrapping_add(GROUP_BYTES);
                    line = line.add(GROUP_LINE);
                }
            }
            for r in 0..R {
                for v in 0..V {
                    let place = (row + r) * BLOCK + column + v * COLUMNS;
                    _mm256_storeu_si256(to.add(place).cast(), sums[r][v]);
                }
            }
        }
    }
}
