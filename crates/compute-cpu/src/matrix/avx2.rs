//! Blocks of integers with AVX2, whose widest exact products of integers are those of 16 bits: `vpmaddwd` adds
//! two of them. The bytes of a group, `a b c d`, are multiplied as `a c` and `b d`.

use super::{BLOCK, Left, PANEL_STEP_BYTES, STEP_BYTES};
use std::arch::x86_64::*;

/// Rows and columns of a strip: 8 of the 16 registers hold sums.
pub(super) const STRIP: (usize, usize) = (ROWS, VECTORS * LANES);
const ROWS: usize = 4;
const VECTORS: usize = 2;
/// Columns of a vector, each with a sum of 32 bits.
const LANES: usize = 8;

/// A [`super::strips::Strip`].
///
/// # Safety
/// As [`super::strips::Strip`] of the size [`STRIP`], on a machine with AVX2.
#[target_feature(enable = "avx2")]
pub(super) unsafe fn strip(first: *const u8, left: &Left<'_>, mut panel: *const u8, so_far: *const i32, to: *mut i32) {
    let mut sums = [[_mm256_setzero_si256(); VECTORS]; ROWS];
    let low_bytes = _mm256_set1_epi16(0xff);
    // SAFETY: the caller's promise, for every access below.
    unsafe {
        if !so_far.is_null() {
            for (r, sums) in sums.iter_mut().enumerate() {
                for (v, sum) in sums.iter_mut().enumerate() {
                    *sum = _mm256_loadu_si256(so_far.add(r * BLOCK + v * LANES).cast());
                }
            }
        }
        for &offset in left.offsets {
            let mut a = first.add(offset);
            for group in 0..STEP_BYTES / 4 {
                let line = panel.add(group * 4 * BLOCK);
                let mut even = [_mm256_setzero_si256(); VECTORS];
                let mut odd = even;
                for v in 0..VECTORS {
                    let b = _mm256_loadu_si256(line.add(v * 4 * LANES).cast());
                    even[v] = _mm256_srai_epi16::<8>(_mm256_slli_epi16::<8>(b));
                    odd[v] = _mm256_srai_epi16::<8>(b);
                }
                for (r, sums) in sums.iter_mut().enumerate() {
                    let group = _mm256_set1_epi32(a.add(r * left.pitch).cast::<i32>().read_unaligned());
                    let (a_even, a_odd) = (_mm256_and_si256(group, low_bytes), _mm256_srli_epi16::<8>(group));
                    for v in 0..VECTORS {
                        let products = _mm256_madd_epi16(a_even, even[v]);
                        sums[v] = _mm256_add_epi32(sums[v], products);
                        sums[v] = _mm256_add_epi32(sums[v], _mm256_madd_epi16(a_odd, odd[v]));
                    }
                }
                a = a.add(4);
            }
            panel = panel.add(PANEL_STEP_BYTES);
        }
        for (r, sums) in sums.iter().enumerate() {
            for (v, sum) in sums.iter().enumerate() {
                _mm256_storeu_si256(to.add(r * BLOCK + v * LANES).cast(), *sum);
            }
        }
    }
}
