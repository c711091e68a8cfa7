//! Blocks with AVX-512: each `vdpbf16ps` (BF16) or `vpdpbusd` (VNNI) adds the products of a group of rows of
//! the panel to 16 sums. The hardware's prefetching keeps up with them but where a panel is read once, and they leave
//! nothing idle.

use super::{BLOCK, Block, Factor, Left, Meanwhile, PANEL_STEP_BYTES, STEP_BYTES, TILE};
use crate::prefetch;
use std::arch::x86_64::*;

/// Multiplies its rows from the first pointer on by the panel at the second, starting with the sums at
/// the third, where that is not null, and writes those at the fourth.
pub(super) type Strip = unsafe fn(*const u8, Left<'_>, *const u8, *const u8, *mut u8);

/// Strips of 1, 2, 4 and 8 rows. Of those 16 of the 32 registers hold the sums.
pub(super) type Strips = [Strip; 4];

/// So few rows take less time to be multiplied than the panel takes to come from memory.
const FEW_ROWS: usize = 2;
/// Bytes from what few rows are multiplied by to what is asked for then: as many as hide how far memory is.
const AHEAD: usize = 8192;

/// # Safety
/// As [`super::Tiles::block`], on a machine with the strips' instructions.
pub(super) unsafe fn block<F: Factor>(strips: &Strips, block: Block<'_, F>, meanwhile: Meanwhile<'_>) {
    let Block { left, panel, rows, so_far, to, ahead: _ } = block;
    let index = (0..3).find(|&index| rows <= 1 << index).unwrap_or(3);
    for first in (0..rows).step_by(1 << index) {
        let sums = first * BLOCK * size_of::<F::Sum>();
        // SAFETY: the caller's promise; the rows of a strip lie in one tile, and so do their sums.
        unsafe {
            let rows = left.tiles[first / TILE].add(first % TILE * left.pitch);
            let so_far = if so_far.is_null() { std::ptr::null() } else { so_far.cast::<u8>().add(sums) };
            strips[index](rows, left, panel, so_far, to.cast::<u8>().add(sums));
        }
    }
    meanwhile(0, 1);
}

/// A [`Strip`] of 32-bit sums by an instruction that multiplies groups of 4 bytes.
macro_rules! strip {
    ($strips:ident, $name:ident, $features:literal, $dot:expr) => {
        pub(super) static $strips: Strips = [$name::<1>, $name::<2>, $name::<4>, $name::<8>];

        /// # Safety
        /// As [`block`] for the rows of a strip; the sums so far may be null.
        #[target_feature(enable = $features)]
        unsafe fn $name<const ROWS: usize>(
            first: *const u8,
            left: Left<'_>,
            mut panel: *const u8,
            so_far: *const u8,
            to: *mut u8,
        ) {
            const HALF: usize = size_of::<__m512i>();
            // SAFETY: the caller's promise, for every access below. All vectors are 64 bytes of any contents.
            unsafe {
                let mut low = [_mm512_setzero_si512(); ROWS];
                let mut high = [_mm512_setzero_si512(); ROWS];
                if !so_far.is_null() {
                    for r in 0..ROWS {
                        low[r] = _mm512_load_si512(so_far.add(r * 2 * HALF).cast());
                        high[r] = _mm512_load_si512(so_far.add(r * 2 * HALF + HALF).cast());
                    }
                }
                for &offset in left.offsets {
                    let mut a = first.add(offset);
                    for group in 0..STEP_BYTES / 4 {
                        let line = panel.add(group * 2 * HALF);
                        if ROWS <= FEW_ROWS {
                            _mm_prefetch::<_MM_HINT_T0>(line.wrapping_add(AHEAD).cast());
                            _mm_prefetch::<_MM_HINT_T0>(line.wrapping_add(AHEAD + HALF).cast());
                            if (group * 2 * HALF).is_multiple_of(prefetch::PAGE_STEP) {
                                prefetch::page_ahead(line);
                            }
                        }
                        let b0 = _mm512_loadu_si512(line.cast());
                        let b1 = _mm512_loadu_si512(line.add(HALF).cast());
                        for r in 0..ROWS {
                            let group = _mm512_set1_epi32(a.add(r * left.pitch).cast::<i32>().read_unaligned());
                            low[r] = $dot(low[r], group, b0);
                            high[r] = $dot(high[r], group, b1);
                        }
                        a = a.add(4);
                    }
                    panel = panel.add(PANEL_STEP_BYTES);
                }
                for r in 0..ROWS {
                    _mm512_store_si512(to.add(r * 2 * HALF).cast(), low[r]);
                    _mm512_store_si512(to.add(r * 2 * HALF + HALF).cast(), high[r]);
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
