//! Blocks with AVX-512: each `vdpbf16ps` (BF16) or `vpdpbusd` (VNNI) adds the products of a group of rows of
//! the panel to 16 sums. They leave nothing idle; what fetches ahead by itself keeps up with them only where a panel is
//! near, so that they ask for what comes next as tiles do.

use super::multiply::STRIP;
use super::{Ahead, BLOCK, Block, Factor, Left, Lines, Meanwhile, PANEL_STEP_BYTES, STEP_BYTES};
use crate::prefetch::{self, LINE};
use std::arch::x86_64::*;

/// Multiplies its rows from the first pointer on by the panel at the second, starting with the sums at
/// the third, where that is not null, and writes those at the fourth. Meanwhile memory is asked for.
pub(super) type Strip = unsafe fn(*const u8, &Left<'_>, *const u8, *const u8, *mut u8, &Ahead);

/// Of the 32 registers 16 hold the sums.
pub(super) struct Strips {
    /// Strips of 1 to 8 rows.
    whole: [Strip; STRIP],
    /// Strips of 1 to 16 rows that compute the first half of the columns.
    half: [Strip; 2 * STRIP],
}

/// So few rows take less time to be multiplied than the panel takes to come from memory.
const FEW_ROWS: usize = 2;
/// Bytes from what few rows are multiplied by to what is asked for then: as many as hide how far memory is.
const AHEAD: usize = 8192;
/// Groups of a whole step.
const GROUPS: usize = STEP_BYTES / 4;

/// A value at any address. With debug assertions `read_unaligned`, which the loads of `std::arch` are made of, looks at
/// each address twice: in the innermost loop that takes longer than the products, and the unit was not chosen.
#[repr(C, packed)]
struct Anywhere<T>(T);

/// Rows of each strip of a run of so many rows, as even as can be and at most so many.
const fn heights(most: usize) -> [u8; BLOCK + 1] {
    let mut heights = [1; BLOCK + 1];
    let mut run = 1;
    while run <= BLOCK {
        heights[run] = run.div_ceil(run.div_ceil(most)) as u8;
        run += 1;
    }
    heights
}

const WHOLE_HEIGHTS: [u8; BLOCK + 1] = heights(STRIP);
const HALF_HEIGHTS: [u8; BLOCK + 1] = heights(2 * STRIP);

/// # Safety
/// As [`super::Tiles::block`], on a machine with the strips' instructions.
pub(super) unsafe fn block<F: Factor>(strips: &Strips, block: &Block<'_, F>, meanwhile: Meanwhile<'_>) {
    let &Block { ref left, panel, columns, rows, so_far, to, ref ahead } = block;
    let (strips, heights, most): (&[Strip], _, _) = match columns > BLOCK / 2 {
        true => (&strips.whole, &WHOLE_HEIGHTS, STRIP),
        false => (&strips.half, &HALF_HEIGHTS, 2 * STRIP),
    };
    let Lines { first, rows: line, apart } = left.lines;
    let (mut wanted, mut lines_left) = (ahead.start, ahead.lines);
    let (mut row, mut start, mut place) = (0, left.tiles[0], first);
    // Each strip asks for its share of the streams.
    let streams = match rows.div_ceil(most) {
        0 | 1 => ahead.lines,
        2 => ahead.lines.div_ceil(2),
        _ => ahead.lines.div_ceil(3),
    };
    while row < rows {
        // Rows that lie at one distance.
        let run = (line - place).min(rows - row);
        let end = row + run;
        let mut first = start;
        while row < end {
            let height = usize::from(heights[run]).min(end - row);
            let sums = row * BLOCK * size_of::<F::Sum>();
            let lines = streams.min(lines_left);
            // SAFETY: the caller's promise for these rows; so few have a strip.
            unsafe {
                let so_far = if so_far.is_null() { std::ptr::null() } else { so_far.cast::<u8>().add(sums) };
                strips[height - 1](
                    first,
                    left,
                    panel,
                    so_far,
                    to.cast::<u8>().add(sums),
                    &Ahead { start: wanted, lines, apart: ahead.apart },
                );
            }
            wanted = wanted.wrapping_add(lines * ahead.apart);
            lines_left -= lines;
            first = first.wrapping_add(height * left.pitch);
            row += height;
        }
        start = start.wrapping_add(apart).wrapping_sub(place * left.pitch);
        place = 0;
    }
    meanwhile(0, 1);
}

/// A [`Strip`] of 32-bit sums by an instruction that multiplies groups of 4 bytes.
macro_rules! strip {
    ($strips:ident, $name:ident, $features:literal, $dot:expr) => {
#[rustfmt::skip]
        pub(super) static $strips: Strips = Strips {
            whole: [
                $name::<1, true>, $name::<2, true>, $name::<3, true>, $name::<4, true>,
                $name::<5, true>, $name::<6, true>, $name::<7, true>, $name::<8, true>,
            ],
            half: [
                $name::<1, false>, $name::<2, false>, $name::<3, false>, $name::<4, false>,
                $name::<5, false>, $name::<6, false>, $name::<7, false>, $name::<8, false>,
                $name::<9, false>, $name::<10, false>, $name::<11, false>, $name::<12, false>,
                $name::<13, false>, $name::<14, false>, $name::<15, false>, $name::<16, false>,
            ],
        };

        /// # Safety
        /// As [`block`] for the rows of a strip; the sums so far may be null.
        #[target_feature(enable = $features)]
        unsafe fn $name<const ROWS: usize, const WHOLE: bool>(
            first: *const u8,
            left: &Left<'_>,
            mut panel: *const u8,
            so_far: *const u8,
            to: *mut u8,
            ahead: &Ahead,
        ) {
            const HALF: usize = size_of::<__m512i>();
            let (mut wanted, pitch) = (ahead.start, left.pitch);
            // SAFETY: the caller's promise, for every access below. All vectors are 64 bytes of any contents.
            unsafe {
                let mut low = [_mm512_setzero_si512(); ROWS];
                let mut high = [_mm512_setzero_si512(); ROWS];
                if !so_far.is_null() {
                    for r in 0..ROWS {
                        low[r] = _mm512_load_si512(so_far.add(r * 2 * HALF).cast());
                        if WHOLE {
                            high[r] = _mm512_load_si512(so_far.add(r * 2 * HALF + HALF).cast());
                        }
                    }
                }
                for (step, &offset) in left.offsets.iter().enumerate() {
                    for line in 0..ahead.lines {
                        prefetch::to_second_level(wanted.wrapping_add(line * ahead.apart));
                    }
                    wanted = wanted.wrapping_add(LINE);
                    let depth = left.depths.get(step).map_or(GROUPS, |&depth| usize::from(depth));
                    let mut a = first.wrapping_add(offset);
                    for group in 0..depth {
                        let line = panel.wrapping_add(group * 2 * HALF);
                        if ROWS <= FEW_ROWS {
                            _mm_prefetch::<_MM_HINT_T0>(line.wrapping_add(AHEAD).cast());
                            if WHOLE {
                                _mm_prefetch::<_MM_HINT_T0>(line.wrapping_add(AHEAD + HALF).cast());
                            }
                            if (group * 2 * HALF).is_multiple_of(prefetch::PAGE_STEP) {
                                prefetch::page_ahead(line);
                            }
                        }
                        let b0 = (*line.cast::<Anywhere<__m512i>>()).0;
                        let b1 = (*line.wrapping_add(HALF).cast::<Anywhere<__m512i>>()).0;
                        for r in 0..ROWS {
                            let group = _mm512_set1_epi32((*a.wrapping_add(r * pitch).cast::<Anywhere<i32>>()).0);
                            low[r] = $dot(low[r], group, b0);
                            if WHOLE {
                                high[r] = $dot(high[r], group, b1);
                            }
                        }
                        a = a.wrapping_add(4);
                    }
                    panel = panel.wrapping_add(PANEL_STEP_BYTES);
                }
                for r in 0..ROWS {
                    _mm512_store_si512(to.add(r * 2 * HALF).cast(), low[r]);
                    if WHOLE {
                        _mm512_store_si512(to.add(r * 2 * HALF + HALF).cast(), high[r]);
                    }
                }
            }
        }
    };
}

strip!(U8, strip_u8, "avx512f,avx512vnni", _mm512_dpbusd_epi32);
strip!(BF16, strip_bf16, "avx512f,avx512bf16", dot_bf16);

/// `vdpbf16ps` on the bits of its operands.
///
/// # Safety
/// The machine has AVX-512 F and BF16.
#[inline]
#[target_feature(enable = "avx512f,avx512bf16")]
unsafe fn dot_bf16(sums: __m512i, a: __m512i, b: __m512i) -> __m512i {
    // SAFETY: `__m512bh` and `__m512i` are both 64 bytes of any contents.
    let a: __m512bh = unsafe { std::mem::transmute(a) };
    // SAFETY: as above.
    let b: __m512bh = unsafe { std::mem::transmute(b) };
    _mm512_castps_si512(_mm512_dpbf16_ps(_mm512_castsi512_ps(sums), a, b))
}
