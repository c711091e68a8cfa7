//! Numbers as bytes with AVX-512: what [`super::round_products`] says, in half of the instructions that the compiler
//! takes for it.

use super::{NEAR_MIDDLE, TOGETHER, bytes_body};
use half::bf16;
use std::arch::x86_64::*;

/// Numbers that a register takes in f32.
pub(super) trait Source: Copy {
    fn widen(self) -> f32;
    /// # Safety
    /// As many as a register holds can be read, on a machine with AVX-512 F.
    unsafe fn load(from: *const Self) -> __m512;
}

impl Source for f32 {
    #[inline(always)]
    fn widen(self) -> f32 {
        self
    }

    #[inline(always)]
    unsafe fn load(from: *const f32) -> __m512 {
        // SAFETY: the caller's promise.
        unsafe { _mm512_loadu_ps(from) }
    }
}

impl Source for bf16 {
    #[inline(always)]
    fn widen(self) -> f32 {
        f32::from_bits(u32::from(self.to_bits()) << 16)
    }

    #[inline(always)]
    unsafe fn load(from: *const bf16) -> __m512 {
        // SAFETY: the caller's promise.
        unsafe {
            let bits = _mm512_cvtepu16_epi32(_mm256_loadu_si256(from.cast()));
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(bits))
        }
    }
}

/// [`bytes_body`].
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(super) fn bytes<T: Source>(x: &[T], steps: (f32, f32), out: &mut [u8]) {
    // SAFETY: the caller has the instructions.
    bytes_body(x, steps, out, T::widen, |x, steps, out| unsafe { round_products(x, steps, out) });
}

/// # Safety
/// The machine has AVX-512 (F, BW, DQ), as the caller says to the compiler.
#[inline(always)]
unsafe fn round_products<T: Source>(x: &[T; TOGETHER], (inverse, zero): (f32, f32), out: &mut [u8; TOGETHER]) -> bool {
    const LANES: usize = 16;
    const VECTORS: usize = TOGETHER / LANES;
    /// What is left of the nearest whole number, the even one of two; no exceptions.
    const NEAREST: i32 = 0b1000;
    // SAFETY: the caller's promise; numbers and bytes are so many registers.
    unsafe {
        // Beyond 31 bits, an integer would be the least there is. NaN is not less, and stays.
        let most = _mm512_set1_ps(32767.0);
        let mut integers = [_mm512_setzero_si512(); VECTORS];
        // How far any is from its whole number, by its bits, of which those of NaN are the largest.
        let mut farthest = _mm512_setzero_si512();
        for (v, integers) in integers.iter_mut().enumerate() {
            let product = _mm512_mul_ps(T::load(x.as_ptr().add(v * LANES)), _mm512_set1_ps(inverse));
            let product = _mm512_min_ps(most, product);
            let distance = _mm512_castps_si512(_mm512_reduce_ps::<NEAREST>(product));
            let distance = _mm512_and_si512(distance, _mm512_set1_epi32(i32::MAX));
            farthest = _mm512_max_epu32(farthest, distance);
            *integers = _mm512_cvtps_epi32(product);
        }
        // With saturation: in 16 bits, where they are counted from the zero point, then in 8.
        let zero = _mm512_set1_epi16(zero as i16);
        let low = _mm512_adds_epi16(_mm512_packs_epi32(integers[0], integers[1]), zero);
        let high = _mm512_adds_epi16(_mm512_packs_epi32(integers[2], integers[3]), zero);
        // Packing goes by quarters of a register: four bytes of each of the four, four times.
        let order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
        let bytes = _mm512_permutexvar_epi32(order, _mm512_packus_epi16(low, high));
        _mm512_storeu_si512(out.as_mut_ptr().cast(), bytes);
        let limit = _mm512_set1_epi32((0.5 - NEAR_MIDDLE).to_bits() as i32);
        _mm512_cmpgt_epu32_mask(farthest, limit) == 0
    }
}
