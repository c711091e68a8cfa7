//! Blocks with AVX-512 BF16: each `vdpbf16ps` adds the products of two rows of the panel to 16 sums.

use super::{BLOCK, Left, PANEL_STEP_BYTES, STEP, Sums, TILE};
use std::arch::x86_64::*;

/// # Safety
/// As [`super::Tiles::block`], on a machine with AVX-512 F and BF16.
pub(super) unsafe fn block(left: Left<'_>, panel: *const u8, so_far: *const Sums, to: *mut Sums, rows: usize) {
    let null = so_far.is_null();
    let (mut start, mut so_far) = (to.cast::<f32>(), so_far.cast::<f32>());
    let below = |sums: *const f32, rows: usize| if null { sums } else { sums.wrapping_add(rows * BLOCK) };
    for tile in &left.tiles[..rows.div_ceil(TILE)] {
        // SAFETY: the caller's promise; 8 + 8 rows of a tile, and their sums.
        unsafe {
            strip::<8>(*tile, left, panel, so_far, start);
            strip::<8>(tile.add(8 * left.pitch), left, panel, below(so_far, 8), start.add(8 * BLOCK));
            (start, so_far) = (start.add(TILE * BLOCK), below(so_far, TILE));
        }
    }
}

/// `R` rows: with 8 of them 16 of the 32 registers hold sums.
///
/// # Safety
/// As [`block`] for `R` rows from `first` on; `so_far` may be null.
#[target_feature(enable = "avx512f,avx512bf16")]
unsafe fn strip<const R: usize>(
    first: *const u8,
    left: Left<'_>,
    mut panel: *const u8,
    so_far: *const f32,
    sums: *mut f32,
) {
    // SAFETY: the caller's promise, for every access below. `__m512bh` and `__m512i` are both 64 bytes of
    // any contents.
    unsafe {
        let mut low = [_mm512_setzero_ps(); R];
        let mut high = [_mm512_setzero_ps(); R];
        if !so_far.is_null() {
            for r in 0..R {
                low[r] = _mm512_load_ps(so_far.add(r * BLOCK));
                high[r] = _mm512_load_ps(so_far.add(r * BLOCK + 16));
            }
        }
        for &offset in left.offsets {
            let mut a = first.add(offset);
            for pair in 0..STEP / 2 {
                let line = panel.add(pair * 128);
                let b0: __m512bh = std::mem::transmute(_mm512_loadu_si512(line.cast()));
                let b1: __m512bh = std::mem::transmute(_mm512_loadu_si512(line.add(64).cast()));
                for r in 0..R {
                    let two = a.add(r * left.pitch).cast::<i32>().read_unaligned();
                    let two: __m512bh = std::mem::transmute(_mm512_set1_epi32(two));
                    low[r] = _mm512_dpbf16_ps(low[r], two, b0);
                    high[r] = _mm512_dpbf16_ps(high[r], two, b1);
                }
                a = a.add(4);
            }
            panel = panel.add(PANEL_STEP_BYTES);
        }
        for r in 0..R {
            _mm512_store_ps(sums.add(r * BLOCK), low[r]);
            _mm512_store_ps(sums.add(r * BLOCK + 16), high[r]);
        }
    }
}
