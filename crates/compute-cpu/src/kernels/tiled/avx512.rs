//! The commonest epilogue of whole rows in registers: compilers go through memory between its parts.

use super::super::epilogue::activate;
use super::{BLOCK, Ending, Numbers};
use half::bf16;
use std::arch::x86_64::*;

/// Half a row of a block.
const LANES: usize = 16;

/// Ends rows of [`BLOCK`] columns.
///
/// # Safety
/// The machine has AVX-512 (F, BW, DQ, VL); the piece lies inside residual and target, and its sums inside
/// `sums`.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
pub(super) unsafe fn end_whole_rows(sums: &[f32], ending: &Ending<'_>) {
    let piece = ending.piece;
    assert!(piece.columns == BLOCK && piece.rows * BLOCK <= sums.len());
    let bounded = ending.bounds != (f32::NEG_INFINITY, f32::INFINITY);
    let (low, high) = (_mm512_set1_ps(ending.bounds.0), _mm512_set1_ps(ending.bounds.1));
    // No closures here: what `map` calls is compiled without these instructions.
    // SAFETY: the caller's promise, for every access below.
    unsafe {
        let bias = ending.bias.as_ptr();
        let bias = [_mm512_loadu_ps(bias), _mm512_loadu_ps(bias.add(LANES))];
        for row in 0..piece.rows {
            let at = piece.start + row * piece.row;
            let sums = sums.as_ptr().add(row * BLOCK);
            let mut halves = [
                _mm512_add_ps(_mm512_loadu_ps(sums), bias[0]),
                _mm512_add_ps(_mm512_loadu_ps(sums.add(LANES)), bias[1]),
            ];
            match ending.residual {
                Numbers::None => {}
                Numbers::F32(start) => {
                    halves[0] = _mm512_add_ps(halves[0], _mm512_loadu_ps(start.add(at)));
                    halves[1] = _mm512_add_ps(halves[1], _mm512_loadu_ps(start.add(at + LANES)));
                }
                Numbers::Bf16(start) => {
                    halves[0] = _mm512_add_ps(halves[0], widen(start.add(at)));
                    halves[1] = _mm512_add_ps(halves[1], widen(start.add(at + LANES)));
                }
            }
            if let Some(function) = ending.function {
                let mut line = [0f32; BLOCK];
                _mm512_storeu_ps(line.as_mut_ptr(), halves[0]);
                _mm512_storeu_ps(line.as_mut_ptr().add(LANES), halves[1]);
                activate(function, &mut line);
                halves = [_mm512_loadu_ps(line.as_ptr()), _mm512_loadu_ps(line.as_ptr().add(LANES))];
            }
            if bounded {
                // Where one operand is NaN these give the second.
                halves[0] = _mm512_min_ps(high, _mm512_max_ps(low, halves[0]));
                halves[1] = _mm512_min_ps(high, _mm512_max_ps(low, halves[1]));
            }
            match ending.target {
                Numbers::None => {}
                Numbers::F32(start) => {
                    _mm512_storeu_ps(start.add(at), halves[0]);
                    _mm512_storeu_ps(start.add(at + LANES), halves[1]);
                }
                Numbers::Bf16(start) => {
                    narrow(halves[0], start.add(at));
                    narrow(halves[1], start.add(at + LANES));
                }
            }
        }
    }
}

/// # Safety
/// As [`end_whole_rows`] for [`LANES`] numbers from `from` on.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
unsafe fn widen(from: *const bf16) -> __m512 {
    // SAFETY: the caller's promise.
    let bits = unsafe { _mm256_loadu_si256(from.cast()) };
    _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(bits)))
}

/// Rounds as [`crate::real::nearest`] does.
///
/// # Safety
/// As [`end_whole_rows`] for [`LANES`] numbers from `to` on.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
unsafe fn narrow(numbers: __m512, to: *mut bf16) {
    let bits = _mm512_castps_si512(numbers);
    let upper = _mm512_srli_epi32::<16>(bits);
    let odd = _mm512_and_si512(upper, _mm512_set1_epi32(1));
    let rounded = _mm512_srli_epi32::<16>(_mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd));
    let nan = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(numbers, numbers);
    let rounded = _mm512_mask_or_epi32(rounded, nan, upper, _mm512_set1_epi32(0x40));
    // SAFETY: the caller's promise.
    unsafe { _mm256_storeu_si256(to.cast(), _mm512_cvtepi32_epi16(rounded)) };
}
