//! Registers of AVX2 and AVX-512.

use super::{Bytes, LEAST_POWER, Vector};
use half::bf16;
use std::arch::asm;
use std::arch::x86_64 as x86;

/// A register of AVX2.
#[derive(Clone, Copy)]
pub(crate) struct Avx2(x86::__m256);

/// A register of AVX-512 (F, DQ).
#[derive(Clone, Copy)]
pub(crate) struct Avx512(x86::__m512);

/// The same where one instruction rounds to bf16: numbers below the normal ones become 0.
#[derive(Clone, Copy)]
pub(crate) struct Avx512Bf16(x86::__m512);

/// A register of AVX-512.
pub(crate) trait Wide: Vector {
    /// The numbers that have these bits.
    fn of_bits(bits: x86::__m512i) -> Self;
}

/// See [`Vector::in_turn`].
#[inline]
#[target_feature(enable = "avx512f")]
fn in_turn_16(mut register: x86::__m512) -> x86::__m512 {
    // SAFETY: no instruction at all.
    unsafe { asm!("/* {0} */", inout(zmm_reg) register, options(nostack, preserves_flags)) };
    register
}

/// Implements [`Vector`] by intrinsics that take and give registers.
macro_rules! x86_vector {
    ($name:ident, $lanes:literal, $registers:literal, $splat:ident, $load:ident, $store:ident, $widen:ident,
     $narrow:ident, $add:ident, $sub:ident, $mul:ident, $fma:ident, $fnma:ident, $max:ident, $min:ident,
     $order:ty, $order_of:ident, $exchanged:ident, $turn:ident,
     $round:ident, $sums:ident, $whole:ident, $widen_u8:ident, $widen_i8:ident, $widen_bits:ident, $hide:ident, $store_bytes:ident $(, $own:item)*) => {
        impl Vector for $name {
            const LANES: usize = $lanes;
            const REGISTERS: usize = $registers;

            #[inline(always)]
            unsafe fn splat(number: f32) -> Self {
                // SAFETY: the caller's promise, here and below.
                $name(unsafe { x86::$splat(number) })
            }

            #[inline(always)]
            unsafe fn load(from: *const f32) -> Self {
                // SAFETY: as above.
                $name(unsafe { x86::$load(from) })
            }

            #[inline(always)]
            unsafe fn store(self, to: *mut f32) {
                // SAFETY: as above.
                unsafe { x86::$store(to, self.0) }
            }

            #[inline(always)]
            unsafe fn widen(from: *const bf16) -> Self {
                // SAFETY: as above.
                $name(unsafe { $widen(from) })
            }

            #[inline(always)]
            unsafe fn narrow(self, to: *mut bf16) {
                // SAFETY: as above.
                unsafe { $narrow(self.0, to) }
            }

            #[inline(always)]
            unsafe fn plus(self, other: Self) -> Self {
                // SAFETY: as above.
                $name(unsafe { x86::$add(self.0, other.0) })
            }

            #[inline(always)]
            unsafe fn minus(self, other: Self) -> Self {
                // SAFETY: as above.
                $name(unsafe { x86::$sub(self.0, other.0) })
            }

            #[inline(always)]
            unsafe fn times(self, other: Self) -> Self {
                // SAFETY: as above.
                $name(unsafe { x86::$mul(self.0, other.0) })
            }

            #[inline(always)]
            unsafe fn plus_product(self, a: Self, b: Self) -> Self {
                // SAFETY: as above.
                $name(unsafe { x86::$fma(a.0, b.0, self.0) })
            }

            #[inline(always)]
            unsafe fn minus_product(self, a: Self, b: Self) -> Self {
                // SAFETY: as above.
                $name(unsafe { x86::$fnma(a.0, b.0, self.0) })
            }

            type Order = $order;

            #[inline(always)]
            unsafe fn order_of(bits: usize) -> $order {
                // SAFETY: as above.
                unsafe { $order_of(bits) }
            }

            #[inline(always)]
            unsafe fn exchanged(self, order: $order) -> Self {
                // SAFETY: as above.
                $name(unsafe { $exchanged(self.0, order) })
            }

            #[inline(always)]
            unsafe fn turn_square(from: *const f32, from_apart: usize, to: *mut f32, to_apart: usize) {
                // SAFETY: as above.
                unsafe { $turn(from, from_apart, to, to_apart) }
            }

            // Both give their second operand where one is NaN.
            #[inline(always)]
            unsafe fn at_least(self, low: Self) -> Self {
                // SAFETY: as above.
                $name(unsafe { x86::$max(low.0, self.0) })
            }

            #[inline(always)]
            unsafe fn at_most(self, high: Self) -> Self {
                // SAFETY: as above.
                $name(unsafe { x86::$min(high.0, self.0) })
            }

            #[inline(always)]
            unsafe fn round(self) -> Self {
                // SAFETY: as above.
                $name(unsafe { $round(self.0) })
            }

            #[inline(always)]
            unsafe fn sums(self, added: *const i32) -> Self {
                // SAFETY: as above.
                $name(unsafe { $sums(self.0, added) })
            }

            #[inline(always)]
            unsafe fn whole(self) -> Self {
                // SAFETY: as above.
                $name(unsafe { $whole(self.0) })
            }

            #[inline(always)]
            unsafe fn widen_u8(from: *const u8) -> Self {
                // SAFETY: as above.
                $name(unsafe { $widen_u8(from) })
            }

            #[inline(always)]
            unsafe fn widen_i8(from: *const i8) -> Self {
                // SAFETY: as above.
                $name(unsafe { $widen_i8(from) })
            }

            #[inline(always)]
            unsafe fn widen_bits(from: *const u32, low: usize, bits: usize) -> Self {
                // SAFETY: as above.
                $name(unsafe { $widen_bits(from, low, bits) })
            }

            #[inline(always)]
            unsafe fn hide(self, shown: *const u8) -> Self {
                // SAFETY: as above.
                $name(unsafe { $hide(self.0, shown) })
            }

            #[inline(always)]
            unsafe fn store_bytes(self, to: *mut u8) {
                // SAFETY: as above.
                unsafe { $store_bytes(self.0, to) }
            }

            $($own)*
        }
    };
}

/// [`Vector`] for a register of AVX-512 that is narrowed by a function.
macro_rules! avx512_vector {
    ($name:ident, $narrow:ident $(, $own:item)*) => {
        x86_vector!(
            $name,
            16,
            32,
            _mm512_set1_ps,
            _mm512_loadu_ps,
            _mm512_storeu_ps,
            widen_16,
            $narrow,
            _mm512_add_ps,
            _mm512_sub_ps,
            _mm512_mul_ps,
            _mm512_fmadd_ps,
            _mm512_fnmadd_ps,
            _mm512_max_ps,
            _mm512_min_ps,
            x86::__m512i,
            order_of_16,
            exchanged_16,
            turn_16,
            round_to_whole_16,
            sums_16,
            whole_16,
            widen_u8_16,
            widen_i8_16,
            widen_bits_16,
            hide_16,
            store_bytes_16,
            $($own,)*
            #[inline(always)]
            unsafe fn in_turn(self) -> Self {
                // SAFETY: the caller's promise.
                $name(unsafe { in_turn_16(self.0) })
            },
            const SPLIT: usize = 1;,
            #[inline(always)]
            unsafe fn widen_split(from: *const bf16) -> [Self; 2] {
                // SAFETY: the caller's promise.
                let [first, second] = unsafe { widen_split_16(from) };
                [$name(first), $name(second)]
            },
            #[inline(always)]
            unsafe fn widen_pair(from: *const bf16) -> [Self; 2] {
                // SAFETY: the caller's promise.
                let [first, second] = unsafe { widen_pair_16(from) };
                [$name(first), $name(second)]
            },
            #[inline(always)]
            unsafe fn split([a, b]: [Self; 2]) -> [Self; 2] {
                // SAFETY: the caller's promise.
                let [first, second] = unsafe { chosen_16([a.0, b.0], EVEN_AND_ODD) };
                [$name(first), $name(second)]
            },
            #[inline(always)]
            unsafe fn join([a, b]: [Self; 2]) -> [Self; 2] {
                // SAFETY: the caller's promise.
                let [first, second] = unsafe { chosen_16([a.0, b.0], NEIGHBOURS) };
                [$name(first), $name(second)]
            },
            #[inline(always)]
            unsafe fn store_pair([a, b]: [Self; 2], bytes: Bytes, to: *mut u8) {
                // SAFETY: the caller's promise.
                unsafe { store_pair_16([a.0, b.0], bytes, to) }
            },
            #[inline(always)]
            unsafe fn store_bytes_of_pair([a, b]: [Self; 2], bounds: (u8, u8), to: *mut u8) {
                // SAFETY: the caller's promise.
                unsafe { store_bytes_of_pair_16([a.0, b.0], bounds, to) }
            },
            #[inline(always)]
            unsafe fn store_small_pair([a, b]: [Self; 2], to: *mut u8) {
                // SAFETY: the caller's promise.
                unsafe {
                    let words = x86::_mm512_packs_epi32(x86::_mm512_cvtps_epi32(a.0), x86::_mm512_cvtps_epi32(b.0));
                    x86::_mm256_storeu_si256(to.cast(), bytes_of_words_16(words));
                }
            },
            #[inline(always)]
            unsafe fn logistic(self) -> Self {
                // SAFETY: the caller's promise.
                unsafe {
                    let mut one = [self.times(Self::splat(-std::f32::consts::LOG2_E))];
                    Self::share_each(&mut one);
                    one[0]
                }
            },
            #[inline(always)]
            unsafe fn share_each<const N: usize>(numbers: &mut [Self; N]) {
                let mut bare = [numbers[0].0; N];
                for index in 0..N {
                    bare[index] = numbers[index].0;
                }
                // SAFETY: the caller's promise.
                unsafe { shares_16(&mut bare) };
                for index in 0..N {
                    numbers[index] = $name(bare[index]);
                }
            },
            #[inline(always)]
            unsafe fn exp_near(self) -> Self {
                // SAFETY: the caller's promise.
                $name(unsafe { exp_16(self.0) })
            },
            #[inline(always)]
            unsafe fn power_of_two(self) -> Self {
                // SAFETY: the caller's promise.
                $name(unsafe { normal_power_of_two_16(self.0) })
            },
            #[inline(always)]
            unsafe fn largest_lane(self) -> f32 {
                // SAFETY: the caller's promise.
                unsafe { x86::_mm512_reduce_max_ps(self.0) }
            },
            #[inline(always)]
            unsafe fn sum_of_lanes(self) -> f32 {
                // SAFETY: the caller's promise.
                unsafe { x86::_mm512_reduce_add_ps(self.0) }
            }
        );
    };
}

x86_vector!(
    Avx2,
    8,
    16,
    _mm256_set1_ps,
    _mm256_loadu_ps,
    _mm256_storeu_ps,
    widen_8,
    narrow_8,
    _mm256_add_ps,
    _mm256_sub_ps,
    _mm256_mul_ps,
    _mm256_fmadd_ps,
    _mm256_fnmadd_ps,
    _mm256_max_ps,
    _mm256_min_ps,
    x86::__m256i,
    order_of_8,
    exchanged_8,
    turn_8,
    round_to_whole_8,
    sums_8,
    whole_8,
    widen_u8_8,
    widen_i8_8,
    widen_bits_8,
    hide_8,
    store_bytes_8
);
macro_rules! wide {
    ($($name:ident),*) => {
        $(impl Wide for $name {
            #[inline(always)]
            fn of_bits(bits: x86::__m512i) -> Self {
                // SAFETY: both types are 64 bytes of any contents.
                $name(unsafe { std::mem::transmute::<x86::__m512i, x86::__m512>(bits) })
            }
        })*
    };
}
wide!(Avx512, Avx512Bf16);
avx512_vector!(Avx512, narrow_16);
avx512_vector!(
    Avx512Bf16,
    round_16,
    #[inline(always)]
    unsafe fn narrow_pair([first, second]: [Self; 2], to: *mut bf16) {
        // SAFETY: the caller's promise; both types are 64 bytes of any contents.
        unsafe {
            let rounded: x86::__m512i = std::mem::transmute(x86::_mm512_cvtne2ps_pbh(second.0, first.0));
            x86::_mm512_storeu_si512(to.cast(), rounded);
        }
    },
    #[inline(always)]
    unsafe fn narrow_joined([even, odd]: [Self; 2], to: *mut bf16) {
        /// Of each pair of results the place among the even ones, and behind them among the odd.
        const TURNS: [u16; 32] = {
            let mut turns = [0; 32];
            let mut at = 0;
            while at < 32 {
                turns[at] = (at / 2 + at % 2 * 16) as u16;
                at += 1;
            }
            turns
        };
        // SAFETY: as above. Rounded first, one permutation joins both.
        unsafe {
            let rounded: x86::__m512i = std::mem::transmute(x86::_mm512_cvtne2ps_pbh(odd.0, even.0));
            let turns = x86::_mm512_loadu_si512(TURNS.as_ptr().cast());
            x86::_mm512_storeu_si512(to.cast(), x86::_mm512_permutexvar_epi16(turns, rounded));
        }
    }
);

/// # Safety
/// As [`Vector::round`].
#[inline(always)]
unsafe fn round_to_whole_8(numbers: x86::__m256) -> x86::__m256 {
    // SAFETY: the caller's promise.
    unsafe { x86::_mm256_round_ps::<{ x86::_MM_FROUND_TO_NEAREST_INT | x86::_MM_FROUND_NO_EXC }>(numbers) }
}

/// # Safety
/// As [`Vector::round`].
#[inline(always)]
unsafe fn round_to_whole_16(numbers: x86::__m512) -> x86::__m512 {
    // SAFETY: the caller's promise.
    unsafe { x86::_mm512_roundscale_ps::<{ x86::_MM_FROUND_TO_NEAREST_INT | x86::_MM_FROUND_NO_EXC }>(numbers) }
}

/// # Safety
/// As [`Vector::sums`].
#[inline(always)]
unsafe fn sums_8(bits: x86::__m256, added: *const i32) -> x86::__m256 {
    // SAFETY: the caller's promise.
    unsafe {
        let (sums, added) = (x86::_mm256_castps_si256(bits), x86::_mm256_loadu_si256(added.cast()));
        x86::_mm256_cvtepi32_ps(x86::_mm256_add_epi32(sums, added))
    }
}

/// # Safety
/// As [`Vector::sums`].
#[inline(always)]
unsafe fn sums_16(bits: x86::__m512, added: *const i32) -> x86::__m512 {
    // SAFETY: the caller's promise.
    unsafe {
        let (sums, added) = (x86::_mm512_castps_si512(bits), x86::_mm512_loadu_si512(added.cast()));
        x86::_mm512_cvtepi32_ps(x86::_mm512_add_epi32(sums, added))
    }
}

/// # Safety
/// As [`Vector::whole`].
#[inline(always)]
unsafe fn whole_8(bits: x86::__m256) -> x86::__m256 {
    // SAFETY: the caller's promise.
    unsafe { x86::_mm256_cvtepi32_ps(x86::_mm256_castps_si256(bits)) }
}

/// # Safety
/// As [`Vector::whole`].
#[inline(always)]
unsafe fn whole_16(bits: x86::__m512) -> x86::__m512 {
    // SAFETY: the caller's promise.
    unsafe { x86::_mm512_cvtepi32_ps(x86::_mm512_castps_si512(bits)) }
}

/// # Safety
/// As [`Vector::widen_u8`].
#[inline(always)]
unsafe fn widen_u8_8(from: *const u8) -> x86::__m256 {
    // SAFETY: the caller's promise.
    unsafe {
        let integers = x86::_mm_loadl_epi64(from.cast());
        x86::_mm256_cvtepi32_ps(x86::_mm256_cvtepu8_epi32(integers))
    }
}

/// # Safety
/// As [`Vector::widen_u8`].
#[inline(always)]
unsafe fn widen_u8_16(from: *const u8) -> x86::__m512 {
    // SAFETY: the caller's promise.
    unsafe {
        let integers = x86::_mm_loadu_si128(from.cast());
        x86::_mm512_cvtepi32_ps(x86::_mm512_cvtepu8_epi32(integers))
    }
}

/// # Safety
/// As [`Vector::widen_i8`].
#[inline(always)]
unsafe fn widen_i8_8(from: *const i8) -> x86::__m256 {
    // SAFETY: the caller's promise.
    unsafe {
        let integers = x86::_mm_loadl_epi64(from.cast());
        x86::_mm256_cvtepi32_ps(x86::_mm256_cvtepi8_epi32(integers))
    }
}

/// # Safety
/// As [`Vector::widen_i8`].
#[inline(always)]
unsafe fn widen_i8_16(from: *const i8) -> x86::__m512 {
    // SAFETY: the caller's promise.
    unsafe {
        let integers = x86::_mm_loadu_si128(from.cast());
        x86::_mm512_cvtepi32_ps(x86::_mm512_cvtepi8_epi32(integers))
    }
}

/// # Safety
/// As [`Vector::widen_bits`].
#[inline(always)]
unsafe fn widen_bits_8(from: *const u32, low: usize, bits: usize) -> x86::__m256 {
    // SAFETY: the caller's promise.
    unsafe {
        let words = x86::_mm256_loadu_si256(from.cast());
        let on_top = x86::_mm256_sllv_epi32(words, x86::_mm256_set1_epi32((32 - bits - low) as i32));
        let integers = x86::_mm256_srav_epi32(on_top, x86::_mm256_set1_epi32((32 - bits) as i32));
        x86::_mm256_cvtepi32_ps(integers)
    }
}

/// # Safety
/// As [`Vector::widen_bits`].
#[inline(always)]
unsafe fn widen_bits_16(from: *const u32, low: usize, bits: usize) -> x86::__m512 {
    // SAFETY: the caller's promise.
    unsafe {
        let words = x86::_mm512_loadu_si512(from.cast());
        let on_top = x86::_mm512_sllv_epi32(words, x86::_mm512_set1_epi32((32 - bits - low) as i32));
        let integers = x86::_mm512_srav_epi32(on_top, x86::_mm512_set1_epi32((32 - bits) as i32));
        x86::_mm512_cvtepi32_ps(integers)
    }
}

/// # Safety
/// As [`Vector::hide`].
#[inline(always)]
unsafe fn hide_8(numbers: x86::__m256, shown: *const u8) -> x86::__m256 {
    // SAFETY: the caller's promise.
    unsafe {
        let shown = x86::_mm256_cvtepu8_epi32(x86::_mm_loadl_epi64(shown.cast()));
        let hidden = x86::_mm256_cmpeq_epi32(shown, x86::_mm256_setzero_si256());
        let nothing = x86::_mm256_set1_ps(f32::NEG_INFINITY);
        x86::_mm256_blendv_ps(numbers, nothing, x86::_mm256_castsi256_ps(hidden))
    }
}

/// # Safety
/// As [`Vector::hide`].
#[inline(always)]
unsafe fn hide_16(numbers: x86::__m512, shown: *const u8) -> x86::__m512 {
    // SAFETY: the caller's promise.
    unsafe {
        let shown = x86::_mm_loadu_si128(shown.cast());
        let shown = x86::_mm_test_epi8_mask(shown, shown);
        x86::_mm512_mask_mov_ps(x86::_mm512_set1_ps(f32::NEG_INFINITY), shown, numbers)
    }
}

/// # Safety
/// As [`Vector::store_bytes`].
#[inline(always)]
unsafe fn store_bytes_8(numbers: x86::__m256, to: *mut u8) {
    // SAFETY: the caller's promise.
    unsafe {
        let integers = x86::_mm256_and_si256(x86::_mm256_cvtps_epi32(numbers), x86::_mm256_set1_epi32(0xff));
        let (low, high) = (x86::_mm256_castsi256_si128(integers), x86::_mm256_extracti128_si256::<1>(integers));
        let pairs = x86::_mm_packus_epi32(low, high);
        x86::_mm_storel_epi64(to.cast(), x86::_mm_packus_epi16(pairs, pairs))
    }
}

/// # Safety
/// As [`Vector::store_bytes`].
#[inline(always)]
unsafe fn store_bytes_16(numbers: x86::__m512, to: *mut u8) {
    // SAFETY: the caller's promise.
    unsafe { x86::_mm_storeu_si128(to.cast(), x86::_mm512_cvtepi32_epi8(x86::_mm512_cvtps_epi32(numbers))) }
}

/// # Safety
/// As [`Vector::widen`].
#[inline(always)]
unsafe fn widen_8(from: *const bf16) -> x86::__m256 {
    // SAFETY: the caller's promise.
    unsafe {
        let bits = x86::_mm256_cvtepu16_epi32(x86::_mm_loadu_si128(from.cast()));
        x86::_mm256_castsi256_ps(x86::_mm256_slli_epi32::<16>(bits))
    }
}

/// # Safety
/// As [`Vector::narrow`].
#[inline(always)]
unsafe fn narrow_8(numbers: x86::__m256, to: *mut bf16) {
    // SAFETY: the caller's promise.
    unsafe {
        let bits = x86::_mm256_castps_si256(numbers);
        let upper = x86::_mm256_srli_epi32::<16>(bits);
        let odd = x86::_mm256_and_si256(upper, x86::_mm256_set1_epi32(1));
        let up = x86::_mm256_add_epi32(odd, x86::_mm256_set1_epi32(0x7fff));
        let rounded = x86::_mm256_srli_epi32::<16>(x86::_mm256_add_epi32(bits, up));
        let quiet = x86::_mm256_or_si256(upper, x86::_mm256_set1_epi32(0x40));
        let nan = x86::_mm256_castps_si256(x86::_mm256_cmp_ps::<{ x86::_CMP_UNORD_Q }>(numbers, numbers));
        let rounded = x86::_mm256_blendv_epi8(rounded, quiet, nan);
        // Packs each half of the register twice: the quarters 0 and 2 hold all.
        let packed = x86::_mm256_permute4x64_epi64::<0b1000>(x86::_mm256_packus_epi32(rounded, rounded));
        x86::_mm_storeu_si128(to.cast(), x86::_mm256_castsi256_si128(packed));
    }
}

/// # Safety
/// As [`Vector::widen`].
#[inline(always)]
unsafe fn widen_16(from: *const bf16) -> x86::__m512 {
    // SAFETY: the caller's promise.
    unsafe {
        let bits = x86::_mm512_cvtepu16_epi32(x86::_mm256_loadu_si256(from.cast()));
        x86::_mm512_castsi512_ps(x86::_mm512_slli_epi32::<16>(bits))
    }
}

/// One load for both registers, which of a line that is far is worth more than the operations, and one operation each: bf16 become
/// the upper halves of floats as they change places.
///
/// # Safety
/// As [`Vector::widen_pair`].
#[inline(always)]
unsafe fn widen_pair_16(from: *const bf16) -> [x86::__m512; 2] {
    /// Of each register, the place of its bf16 in both halves of a float.
    const PLACES: [[u16; 32]; 2] = {
        let mut places = [[0; 32]; 2];
        let mut place = 0;
        while place < 64 {
            places[place / 32][place % 32] = (place / 2) as u16;
            place += 1;
        }
        places
    };
    const UPPER_HALVES: x86::__mmask32 = 0xaaaa_aaaa;
    // SAFETY: the caller's promise.
    unsafe {
        let both = x86::_mm512_loadu_si512(from.cast());
        let places = x86::_mm512_loadu_si512(PLACES[0].as_ptr().cast());
        let first = x86::_mm512_maskz_permutexvar_epi16(UPPER_HALVES, places, both);
        let places = x86::_mm512_loadu_si512(PLACES[1].as_ptr().cast());
        let second = x86::_mm512_maskz_permutexvar_epi16(UPPER_HALVES, places, both);
        [x86::_mm512_castsi512_ps(first), x86::_mm512_castsi512_ps(second)]
    }
}

/// One operation a register: the upper half of 32 bits of bf16 is a float once the lower half is 0.
///
/// # Safety
/// As [`Vector::widen_split`].
#[inline(always)]
unsafe fn widen_split_16(from: *const bf16) -> [x86::__m512; 2] {
    // SAFETY: the caller's promise.
    unsafe {
        let pairs = x86::_mm512_loadu_si512(from.cast());
        let odd = x86::_mm512_and_si512(pairs, x86::_mm512_set1_epi32(0xffff_0000_u32 as i32));
        [x86::_mm512_castsi512_ps(x86::_mm512_slli_epi32::<16>(pairs)), x86::_mm512_castsi512_ps(odd)]
    }
}

/// The places of lanes.
const LANES: [i32; 16] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15];

/// # Safety
/// As [`Vector::order_of`].
#[inline(always)]
unsafe fn order_of_16(bits: usize) -> x86::__m512i {
    // SAFETY: the caller's promise; the places fill a register.
    unsafe {
        x86::_mm512_xor_si512(x86::_mm512_loadu_si512(LANES.as_ptr().cast()), x86::_mm512_set1_epi32(bits as i32))
    }
}

/// # Safety
/// As [`Vector::order_of`].
#[inline(always)]
unsafe fn order_of_8(bits: usize) -> x86::__m256i {
    // SAFETY: as above.
    unsafe {
        x86::_mm256_xor_si256(x86::_mm256_loadu_si256(LANES.as_ptr().cast()), x86::_mm256_set1_epi32(bits as i32))
    }
}

/// # Safety
/// As [`Vector::exchanged`].
#[inline(always)]
unsafe fn exchanged_16(numbers: x86::__m512, order: x86::__m512i) -> x86::__m512 {
    // SAFETY: the caller's promise, here and below.
    unsafe { x86::_mm512_permutexvar_ps(order, numbers) }
}

/// # Safety
/// As [`Vector::exchanged`].
#[inline(always)]
unsafe fn exchanged_8(numbers: x86::__m256, order: x86::__m256i) -> x86::__m256 {
    // SAFETY: as above.
    unsafe { x86::_mm256_permutevar8x32_ps(numbers, order) }
}

/// # Safety
/// As [`Vector::turn_square`].
#[inline(always)]
unsafe fn turn_16(from: *const f32, from_apart: usize, to: *mut f32, to_apart: usize) {
    // SAFETY: the caller's promise.
    unsafe {
        let mut rows = [x86::_mm512_setzero_ps(); 16];
        for row in 0..16 {
            rows[row] = x86::_mm512_loadu_ps(from.add(row * from_apart));
        }
        // Four rows at a time: in each quarter of register `4k + j` column `j` of that quarter, of the rows from `4k` on.
        let mut quarters = [x86::_mm512_setzero_pd(); 16];
        for first in [0, 4, 8, 12] {
            let [a, b, c, d] = [rows[first], rows[first + 1], rows[first + 2], rows[first + 3]];
            let [low, high] = [x86::_mm512_unpacklo_ps(a, b), x86::_mm512_unpackhi_ps(a, b)];
            let [below, above] = [x86::_mm512_unpacklo_ps(c, d), x86::_mm512_unpackhi_ps(c, d)];
            let [low, high] = [x86::_mm512_castps_pd(low), x86::_mm512_castps_pd(high)];
            let [below, above] = [x86::_mm512_castps_pd(below), x86::_mm512_castps_pd(above)];
            quarters[first] = x86::_mm512_unpacklo_pd(low, below);
            quarters[first + 1] = x86::_mm512_unpackhi_pd(low, below);
            quarters[first + 2] = x86::_mm512_unpacklo_pd(high, above);
            quarters[first + 3] = x86::_mm512_unpackhi_pd(high, above);
        }
        // The quarters of a column together.
        for column in 0..4 {
            let [a, b, c, d] = [quarters[column], quarters[4 + column], quarters[8 + column], quarters[12 + column]];
            let even = [x86::_mm512_shuffle_f64x2::<0x88>(a, b), x86::_mm512_shuffle_f64x2::<0x88>(c, d)];
            let odd = [x86::_mm512_shuffle_f64x2::<0xdd>(a, b), x86::_mm512_shuffle_f64x2::<0xdd>(c, d)];
            let made = [
                x86::_mm512_shuffle_f64x2::<0x88>(even[0], even[1]),
                x86::_mm512_shuffle_f64x2::<0x88>(odd[0], odd[1]),
                x86::_mm512_shuffle_f64x2::<0xdd>(even[0], even[1]),
                x86::_mm512_shuffle_f64x2::<0xdd>(odd[0], odd[1]),
            ];
            for quarter in 0..4 {
                x86::_mm512_storeu_pd(to.add((4 * quarter + column) * to_apart).cast(), made[quarter]);
            }
        }
    }
}

/// # Safety
/// As [`Vector::turn_square`].
#[inline(always)]
unsafe fn turn_8(from: *const f32, from_apart: usize, to: *mut f32, to_apart: usize) {
    // SAFETY: the caller's promise.
    unsafe {
        let mut rows = [x86::_mm256_setzero_ps(); 8];
        for row in 0..8 {
            rows[row] = x86::_mm256_loadu_ps(from.add(row * from_apart));
        }
        // Four rows at a time: in each half of register `4k + j` column `j` of that half, of the rows from `4k` on.
        let mut halves = [x86::_mm256_setzero_pd(); 8];
        for first in [0, 4] {
            let [a, b, c, d] = [rows[first], rows[first + 1], rows[first + 2], rows[first + 3]];
            let [low, high] = [x86::_mm256_unpacklo_ps(a, b), x86::_mm256_unpackhi_ps(a, b)];
            let [below, above] = [x86::_mm256_unpacklo_ps(c, d), x86::_mm256_unpackhi_ps(c, d)];
            let [low, high] = [x86::_mm256_castps_pd(low), x86::_mm256_castps_pd(high)];
            let [below, above] = [x86::_mm256_castps_pd(below), x86::_mm256_castps_pd(above)];
            halves[first] = x86::_mm256_unpacklo_pd(low, below);
            halves[first + 1] = x86::_mm256_unpackhi_pd(low, below);
            halves[first + 2] = x86::_mm256_unpacklo_pd(high, above);
            halves[first + 3] = x86::_mm256_unpackhi_pd(high, above);
        }
        for column in 0..4 {
            let (upper, lower) = (halves[column], halves[4 + column]);
            let made =
                [x86::_mm256_permute2f128_pd::<0x20>(upper, lower), x86::_mm256_permute2f128_pd::<0x31>(upper, lower)];
            for half in 0..2 {
                x86::_mm256_storeu_pd(to.add((4 * half + column) * to_apart).cast(), made[half]);
            }
        }
    }
}

/// Of 32 floats in two registers: those of even places, those of odd places.
const EVEN_AND_ODD: [[i32; 16]; 2] = {
    let mut places = [[0; 16]; 2];
    let mut place = 0;
    while place < 32 {
        places[place % 2][place / 2] = place as i32;
        place += 1;
    }
    places
};

/// What brings [`EVEN_AND_ODD`] into order again.
const NEIGHBOURS: [[i32; 16]; 2] = {
    let mut places = [[0; 16]; 2];
    let mut place = 0;
    while place < 32 {
        places[place / 16][place % 16] = (place / 2 + place % 2 * 16) as i32;
        place += 1;
    }
    places
};

/// Two registers of which each lane is the one of `pair` with a place.
///
/// # Safety
/// As [`Vector::split`].
#[inline(always)]
unsafe fn chosen_16(pair: [x86::__m512; 2], places: [[i32; 16]; 2]) -> [x86::__m512; 2] {
    // SAFETY: the caller's promise; the places fill a register.
    unsafe {
        let first = x86::_mm512_loadu_si512(places[0].as_ptr().cast());
        let second = x86::_mm512_loadu_si512(places[1].as_ptr().cast());
        [x86::_mm512_permutex2var_ps(pair[0], first, pair[1]), x86::_mm512_permutex2var_ps(pair[0], second, pair[1])]
    }
}

/// # Safety
/// As [`Vector::narrow`].
#[inline(always)]
unsafe fn narrow_16(numbers: x86::__m512, to: *mut bf16) {
    // SAFETY: the caller's promise.
    unsafe {
        let bits = x86::_mm512_castps_si512(numbers);
        let upper = x86::_mm512_srli_epi32::<16>(bits);
        let odd = x86::_mm512_and_si512(upper, x86::_mm512_set1_epi32(1));
        let up = x86::_mm512_add_epi32(odd, x86::_mm512_set1_epi32(0x7fff));
        let rounded = x86::_mm512_srli_epi32::<16>(x86::_mm512_add_epi32(bits, up));
        let nan = x86::_mm512_cmp_ps_mask::<{ x86::_CMP_UNORD_Q }>(numbers, numbers);
        let rounded = x86::_mm512_mask_or_epi32(rounded, nan, upper, x86::_mm512_set1_epi32(0x40));
        x86::_mm256_storeu_si256(to.cast(), x86::_mm512_cvtepi32_epi16(rounded));
    }
}

/// # Safety
/// As [`Vector::narrow`], on a machine with AVX-512 BF16.
#[inline(always)]
unsafe fn round_16(numbers: x86::__m512, to: *mut bf16) {
    // SAFETY: the caller's promise; both types are 32 bytes of any contents.
    unsafe {
        let rounded: x86::__m256i = std::mem::transmute(x86::_mm512_cvtneps_pbh(numbers));
        x86::_mm256_storeu_si256(to.cast(), rounded);
    }
}

/// Integers are packed with saturation: in 16 bits, where they are counted and bounded, then in 8.
///
/// # Safety
/// As [`Vector::store_pair`].
#[inline(always)]
unsafe fn store_pair_16(pair: [x86::__m512; 2], Bytes { zero, low, high }: Bytes, to: *mut u8) {
    // SAFETY: the caller's promise.
    unsafe {
        let words = x86::_mm512_adds_epi16(words_of_pair_16(pair), x86::_mm512_set1_epi16(zero));
        let words = x86::_mm512_max_epi16(words, x86::_mm512_set1_epi16(low));
        let words = x86::_mm512_min_epi16(words, x86::_mm512_set1_epi16(high));
        x86::_mm256_storeu_si256(to.cast(), bytes_of_words_16(words));
    }
}

/// # Safety
/// As [`Vector::store_bytes_of_pair`].
#[inline(always)]
unsafe fn store_bytes_of_pair_16(pair: [x86::__m512; 2], (low, high): (u8, u8), to: *mut u8) {
    // SAFETY: the caller's promise.
    unsafe {
        let bytes = bytes_of_words_16(words_of_pair_16(pair));
        let bytes = x86::_mm256_max_epu8(bytes, x86::_mm256_set1_epi8(low as i8));
        let bytes = x86::_mm256_min_epu8(bytes, x86::_mm256_set1_epi8(high as i8));
        x86::_mm256_storeu_si256(to.cast(), bytes);
    }
}

/// The nearest whole numbers within 16 bits, by quarters of a register: four of the first of the pair, four of the second,
/// and so on.
///
/// # Safety
/// As [`Vector::store_pair`].
#[inline(always)]
unsafe fn words_of_pair_16(pair: [x86::__m512; 2]) -> x86::__m512i {
    // SAFETY: the caller's promise.
    unsafe {
        // Beyond 31 bits, an integer would be the least there is.
        let most = x86::_mm512_set1_ps(32767.0);
        x86::_mm512_packs_epi32(
            x86::_mm512_cvtps_epi32(x86::_mm512_min_ps(pair[0], most)),
            x86::_mm512_cvtps_epi32(x86::_mm512_min_ps(pair[1], most)),
        )
    }
}

/// What [`words_of_pair_16`] gives as bytes without signs, in order.
///
/// # Safety
/// As [`Vector::store_pair`].
#[inline(always)]
unsafe fn bytes_of_words_16(words: x86::__m512i) -> x86::__m256i {
    // SAFETY: the caller's promise.
    unsafe {
        let bytes = x86::_mm512_packus_epi16(words, words);
        let order = x86::_mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 0, 4, 8, 12, 1, 5, 9, 13);
        x86::_mm512_castsi512_si256(x86::_mm512_permutexvar_epi32(order, bytes))
    }
}

/// `1 / (1 + 2ᵗ)`; the reciprocal is within 2^-14.
///
/// # Safety
/// As [`Vector::share_each`], on a machine with AVX-512 (F, DQ).
#[inline(always)]
unsafe fn shares_16<const N: usize>(numbers: &mut [x86::__m512; N]) {
    // SAFETY: the caller's promise.
    unsafe {
        powers_of_two_16(numbers);
        for number in &mut *numbers {
            *number = x86::_mm512_add_ps(*number, x86::_mm512_set1_ps(1.0));
        }
        for number in numbers {
            *number = x86::_mm512_rcp14_ps(*number);
        }
    }
}

/// As [`Vector::exp_near`], on a machine with AVX-512 (F, DQ).
#[inline(always)]
unsafe fn exp_16(x: x86::__m512) -> x86::__m512 {
    // SAFETY: the caller's promise.
    unsafe { normal_power_of_two_16(x86::_mm512_mul_ps(x, x86::_mm512_set1_ps(std::f32::consts::LOG2_E))) }
}

/// As [`Vector::power_of_two`], on a machine with AVX-512 (F, DQ).
#[inline(always)]
unsafe fn normal_power_of_two_16(t: x86::__m512) -> x86::__m512 {
    // SAFETY: the caller's promise.
    unsafe {
        // Numbers below the normal ones would slow everything down that touches them. NaN is not less.
        let is_normal = x86::_mm512_cmp_ps_mask::<{ x86::_CMP_NLT_UQ }>(t, x86::_mm512_set1_ps(LEAST_POWER));
        x86::_mm512_maskz_mov_ps(is_normal, power_of_two_16(t))
    }
}

/// As [`powers_of_two_16`], of one register.
///
/// # Safety
/// As there.
#[inline(always)]
unsafe fn power_of_two_16(t: x86::__m512) -> x86::__m512 {
    let mut one = [t];
    // SAFETY: the caller's promise.
    unsafe { powers_of_two_16(&mut one) };
    one[0]
}

/// `2ᵗ` within 1e-4 of its value, on a machine with AVX-512 (F, DQ): the power of t's fraction by a polynomial of the third
/// degree, fitted for its relative error (7.5e-5), scaled by the power of t's whole part.
///
/// # Safety
/// As [`Vector`].
#[inline(always)]
unsafe fn powers_of_two_16<const N: usize>(numbers: &mut [x86::__m512; N]) {
    /// Takes the whole part away, rounded down; no exceptions.
    const FRACTION: i32 = 0b1001;
    // SAFETY: the caller's promise.
    unsafe {
        let mut fractions = *numbers;
        for index in 0..N {
            fractions[index] = x86::_mm512_reduce_ps::<FRACTION>(numbers[index]);
        }
        let mut powers = [x86::_mm512_set1_ps(0.078_024_43); N];
        for factor in [0.226_067_3, 0.695_833_47, 0.999_925_2] {
            for index in 0..N {
                powers[index] = x86::_mm512_fmadd_ps(powers[index], fractions[index], x86::_mm512_set1_ps(factor));
            }
        }
        for index in 0..N {
            numbers[index] = x86::_mm512_scalef_ps(powers[index], numbers[index]);
        }
    }
}

/// A block for each row of a tile, one after the other. The compiler might leave a loop over rows as it is, and the
/// sums in memory.
macro_rules! rows {
    ($r:ident in $rows:ident => $block:block) => {
        crate::vector::rows!($r, $rows, $block, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15)
    };
    ($r:ident, $rows:ident, $block:block, $($number:literal),*) => {
        $(if $number < $rows {
            let $r = $number;
            $block
        })*
    };
}
pub(crate) use rows;
