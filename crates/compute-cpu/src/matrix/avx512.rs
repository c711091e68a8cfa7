//! Blocks with AVX-512: each `vdpbf16ps` (BF16) or `vpdpbusd` (VNNI) adds the products of a group of rows of
//! the panel to 16 sums. The hardware's prefetching keeps up with them, and they leave nothing idle.

use super::{BLOCK, Block, Factor, Left, Meanwhile, PANEL_STEP_BYTES, STEP_BYTES, TILE};
use std::arch::x86_64::*;

/// Rows of a strip: 16 of the 32 registers hold their sums.
const ROWS: usize = 8;

/// Multiplies [`ROWS`] rows from the first pointer on by the panel at the second, starting with the sums at
/// the third, where that is not null, and writes those at the fourth.
pub(super) type Strip = unsafe fn(*const u8, Left<'_>, *const u8, *const u8, *mut u8);

/// # Safety
/// As [`super::Tiles::block`], on a machine with the strip's instructions.
pub(super) unsafe fn block<F: Factor>(strip: Strip, block: Block<'_, F>, meanwhile: Meanwhile<'_>) {
    let Block { left, panel, rows, so_far, to, ahead: _ } = block;
    let strip_bytes = ROWS * BLOCK * size_of::<F::Sum>();
    let (mut to, mut so_far) = (to.cast::<u8>(), so_far.cast::<u8>());
    for tile in &left.tiles[..rows.div_ceil(TILE)] {
        for first in (0..TILE).step_by(ROWS) {
            // SAFETY: the caller's promise; the rows of a tile, and their sums.
            unsafe {
                strip(tile.add(first * left.pitch), left, panel, so_far, to);
                to = to.add(strip_bytes);
            }
            if !so_far.is_null() {
                so_far = so_far.wrapping_add(strip_bytes);
            }
        }
    }
    meanwhile(0, 1);
}

/// A [`Strip`] of 32-bit sums by an instruction that multiplies groups of 4 bytes.
macro_rules! strip {
    ($name:ident, $features:literal, $dot:expr) => {
        /// # Safety
        /// As [`block`] for the rows of a strip; the sums so far may be null.
        #[target_feature(enable = $features)]
        pub(super) unsafe fn $name(
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

strip!(strip_u8, "avx512f,avx512vnni", _mm512_dpbusd_epi32);
strip!(strip_bf16, "avx512f,avx512bf16", dot_bf16);

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
