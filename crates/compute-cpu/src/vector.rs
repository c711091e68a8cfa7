//! A register of floats, for the few loops that the compiler does not vectorise from a plain body.

/// As many `f32` as one register of an instruction set holds.
///
/// # Safety of every method
/// The machine has the instructions: call them from functions with the matching `target_feature` alone,
/// into which they are inlined. That holds for `#[inline(always)]` functions in between, and not for
/// closures, which are compiled without the feature: each operation would be a call.
#[allow(clippy::missing_safety_doc, reason = "one duty, said above")]
pub(crate) trait Vector: Copy {
    /// Floats of a register.
    const LANES: usize;

    /// The same number in every lane.
    unsafe fn splat(number: f32) -> Self;
    /// Reads [`Vector::LANES`] floats, aligned or not.
    unsafe fn load(from: *const f32) -> Self;
    /// Writes [`Vector::LANES`] floats, aligned or not.
    unsafe fn store(self, to: *mut f32);
    unsafe fn plus(self, other: Self) -> Self;
    unsafe fn minus(self, other: Self) -> Self;
    /// `self + a·b`, fused where that is one instruction.
    unsafe fn plus_product(self, a: Self, b: Self) -> Self;
    /// `self - a·b`, fused where that is one instruction.
    unsafe fn minus_product(self, a: Self, b: Self) -> Self;
    /// Nothing below `low`; NaN stays.
    unsafe fn at_least(self, low: Self) -> Self;
    /// Nothing above `high`; NaN stays.
    unsafe fn at_most(self, high: Self) -> Self;
}

/// The widest register, in floats.
pub(crate) const MOST_LANES: usize = 16;

/// Four lanes of SSE2 or NEON, by the compiler.
#[derive(Clone, Copy)]
pub(crate) struct Four([f32; 4]);

impl Four {
    #[inline(always)]
    fn zip(self, other: Four, f: impl Fn(f32, f32) -> f32) -> Four {
        Four(std::array::from_fn(|lane| f(self.0[lane], other.0[lane])))
    }
}

impl Vector for Four {
    const LANES: usize = 4;

    #[inline(always)]
    unsafe fn splat(number: f32) -> Four {
        Four([number; 4])
    }

    #[inline(always)]
    unsafe fn load(from: *const f32) -> Four {
        // SAFETY: the caller's promise.
        Four(unsafe { from.cast::<[f32; 4]>().read_unaligned() })
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        // SAFETY: the caller's promise.
        unsafe { to.cast::<[f32; 4]>().write_unaligned(self.0) }
    }

    #[inline(always)]
    unsafe fn plus(self, other: Four) -> Four {
        self.zip(other, |a, b| a + b)
    }

    #[inline(always)]
    unsafe fn minus(self, other: Four) -> Four {
        self.zip(other, |a, b| a - b)
    }

    #[inline(always)]
    unsafe fn plus_product(self, a: Four, b: Four) -> Four {
        self.zip(a.zip(b, |a, b| a * b), |sum, product| sum + product)
    }

    #[inline(always)]
    unsafe fn minus_product(self, a: Four, b: Four) -> Four {
        self.zip(a.zip(b, |a, b| a * b), |sum, product| sum - product)
    }

    #[inline(always)]
    unsafe fn at_least(self, low: Four) -> Four {
        self.zip(low, |x, low| if x < low { low } else { x })
    }

    #[inline(always)]
    unsafe fn at_most(self, high: Four) -> Four {
        self.zip(high, |x, high| if x > high { high } else { x })
    }
}

/// Implements [`Vector`] by intrinsics that take and give registers.
#[cfg(target_arch = "x86_64")]
macro_rules! x86_vector {
    ($register:ident, $lanes:literal, $splat:ident, $load:ident, $store:ident, $add:ident, $sub:ident, $fma:ident,
     $fnma:ident, $max:ident, $min:ident) => {
        impl Vector for x86::$register {
            const LANES: usize = $lanes;

            #[inline(always)]
            unsafe fn splat(number: f32) -> Self {
                // SAFETY: the caller's promise, here and below.
                unsafe { x86::$splat(number) }
            }

            #[inline(always)]
            unsafe fn load(from: *const f32) -> Self {
                // SAFETY: as above.
                unsafe { x86::$load(from) }
            }

            #[inline(always)]
            unsafe fn store(self, to: *mut f32) {
                // SAFETY: as above.
                unsafe { x86::$store(to, self) }
            }

            #[inline(always)]
            unsafe fn plus(self, other: Self) -> Self {
                // SAFETY: as above.
                unsafe { x86::$add(self, other) }
            }

            #[inline(always)]
            unsafe fn minus(self, other: Self) -> Self {
                // SAFETY: as above.
                unsafe { x86::$sub(self, other) }
            }

            #[inline(always)]
            unsafe fn plus_product(self, a: Self, b: Self) -> Self {
                // SAFETY: as above.
                unsafe { x86::$fma(a, b, self) }
            }

            #[inline(always)]
            unsafe fn minus_product(self, a: Self, b: Self) -> Self {
                // SAFETY: as above.
                unsafe { x86::$fnma(a, b, self) }
            }

            // Both give their second operand where one is NaN.
            #[inline(always)]
            unsafe fn at_least(self, low: Self) -> Self {
                // SAFETY: as above.
                unsafe { x86::$max(low, self) }
            }

            #[inline(always)]
            unsafe fn at_most(self, high: Self) -> Self {
                // SAFETY: as above.
                unsafe { x86::$min(high, self) }
            }
        }
    };
}

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64 as x86;
#[cfg(target_arch = "x86_64")]
x86_vector!(
    __m256,
    8,
    _mm256_set1_ps,
    _mm256_loadu_ps,
    _mm256_storeu_ps,
    _mm256_add_ps,
    _mm256_sub_ps,
    _mm256_fmadd_ps,
    _mm256_fnmadd_ps,
    _mm256_max_ps,
    _mm256_min_ps
);
#[cfg(target_arch = "x86_64")]
x86_vector!(
    __m512,
    16,
    _mm512_set1_ps,
    _mm512_loadu_ps,
    _mm512_storeu_ps,
    _mm512_add_ps,
    _mm512_sub_ps,
    _mm512_fmadd_ps,
    _mm512_fnmadd_ps,
    _mm512_max_ps,
    _mm512_min_ps
);
