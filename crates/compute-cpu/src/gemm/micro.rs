//! Micro-kernels: a tile of C in registers, one column of A times one row of a panel of B at a time.

use super::TILE;
use crate::Isa;
use crate::vector::multiply_add;

/// A micro-kernel of this machine. Having one proves that the machine has its instructions.
#[derive(Clone, Copy)]
pub(crate) struct Micro {
    /// Rows of a tile.
    pub mr: usize,
    /// Columns of a tile.
    pub nr: usize,
    name: &'static str,
    /// By number of rows less one.
    tiles: &'static [TileFn],
}

/// Depth, A (start, distance of rows, distance of columns), panel of B, tile of C (start, distance of
/// rows), whether to add to it, what is needed soon.
type TileFn = unsafe fn(usize, (*const f32, usize, usize), *const f32, (*mut f32, usize), bool, Ahead);

/// Memory that is read soon: with every step in depth, or some of them, a micro-kernel asks for one cache line of it, so
/// that it comes while others are computed on.
#[cfg_attr(
    not(any(target_arch = "x86_64", target_arch = "aarch64")),
    expect(dead_code, reason = "the portable kernel leaves it to the hardware")
)]
#[derive(Clone, Copy)]
pub(crate) struct Ahead {
    /// Need not be readable.
    start: *const f32,
    /// Floats from one step to the next.
    step: usize,
    /// Steps from one that asks to the next one, less one: a power of two less one. Few rows heed it, others always ask.
    skipped: usize,
}

impl Ahead {
    /// Floats of a cache line.
    const LINE: usize = 16;
    /// Floats to the page whose lines begin to come while a panel is read from start to end: two pages.
    const STREAM: usize = 2048;

    /// What the product number `tile` with one panel asks for of the panel at `next`, which is as deep: one
    /// cache line of it for each step in depth, until all of it is on its way.
    pub fn panel(micro: &Micro, next: *const f32, tile: usize, depth: usize) -> Ahead {
        if tile * Ahead::LINE >= micro.nr {
            return Ahead::none(next);
        }
        Ahead { start: next.wrapping_add(tile * depth * Ahead::LINE), step: Ahead::LINE, skipped: 0 }
    }

    /// For few rows, which take less time than their panel takes to come, read from start to end with all that
    /// follow: a line of a page ahead now and then. The hardware fetches the others, but begins no page by itself; asking
    /// for each of them would only take time.
    pub fn stream(micro: &Micro, panel: *const f32) -> Ahead {
        Ahead { start: panel.wrapping_add(Ahead::STREAM), step: micro.nr, skipped: 7 }
    }

    /// One line again and again, which is there already.
    pub fn none(near: *const f32) -> Ahead {
        Ahead { start: near, step: 0, skipped: 0 }
    }
}

impl Micro {
    /// The micro-kernel for an instruction set.
    pub fn new(isa: Isa) -> Micro {
        #[cfg(target_arch = "x86_64")]
        {
            if isa.has_avx512() {
                return Micro { mr: 12, nr: 32, name: "avx512", tiles: &x86::AVX512 };
            }
            if isa.has_avx2() {
                return Micro { mr: 6, nr: 16, name: "avx2", tiles: &x86::AVX2 };
            }
        }
        #[cfg(target_arch = "aarch64")]
        if isa.has_neon() {
            return Micro { mr: 6, nr: 16, name: "neon", tiles: &arm::NEON };
        }
        let _ = isa;
        const { assert!(12 * 32 <= TILE && 6 * 16 <= TILE && 6 * 8 <= TILE) };
        Micro { mr: 6, nr: 8, name: Isa::PORTABLE.name(), tiles: &PORTABLE }
    }

    /// The name in listings.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// `C[rows, nr] (+)= A[rows, depth] · B[depth, nr]`.
    ///
    /// # Safety
    /// `rows` is between 1 and `mr`; A is valid for `rows` and `depth`, B for `depth·nr` elements and C
    /// for `rows` of `nr` elements.
    #[inline]
    pub unsafe fn tile(
        &self,
        rows: usize,
        depth: usize,
        a: (*const f32, usize, usize),
        b: *const f32,
        c: (*mut f32, usize),
        add: bool,
    ) {
        // SAFETY: the caller's promise.
        unsafe { self.tile_ahead(rows, depth, a, b, c, add, Ahead::none(b)) }
    }

    /// The same, while what is needed soon comes.
    ///
    /// # Safety
    /// As [`Micro::tile`].
    #[inline]
    pub unsafe fn tile_ahead(
        &self,
        rows: usize,
        depth: usize,
        a: (*const f32, usize, usize),
        b: *const f32,
        c: (*mut f32, usize),
        add: bool,
        ahead: Ahead,
    ) {
        // SAFETY: the caller's promise; `Micro::new` chose instructions that the machine has.
        unsafe { self.tiles[rows - 1](depth, a, b, c, add, ahead) }
    }
}

static PORTABLE: [TileFn; 6] =
    [portable::<1>, portable::<2>, portable::<3>, portable::<4>, portable::<5>, portable::<6>];

/// Plain loops over arrays, which the compiler turns into four lanes of SSE or NEON.
///
/// # Safety
/// As [`Micro::tile`] with `rows = R` and `nr = 8`.
unsafe fn portable<const R: usize>(
    depth: usize,
    (mut a, row, column): (*const f32, usize, usize),
    mut b: *const f32,
    (c, pitch): (*mut f32, usize),
    add: bool,
    _: Ahead,
) {
    let mut sums = [[0f32; 8]; R];
    // SAFETY: the caller's promise, for every access below.
    unsafe {
        if add {
            for (r, sums) in sums.iter_mut().enumerate() {
                sums.copy_from_slice(std::slice::from_raw_parts(c.add(r * pitch), 8));
            }
        }
        for _ in 0..depth {
            let line: &[f32; 8] = &*b.cast();
            for (r, sums) in sums.iter_mut().enumerate() {
                let factor = *a.add(r * row);
                for (sum, &element) in sums.iter_mut().zip(line) {
                    *sum = multiply_add(factor, element, *sum);
                }
            }
            a = a.add(column);
            b = b.add(8);
        }
        for (r, sums) in sums.iter().enumerate() {
            std::slice::from_raw_parts_mut(c.add(r * pitch), 8).copy_from_slice(sums);
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{Ahead, TileFn};
    use crate::gemm::FEW_ROWS;
    use std::arch::x86_64::*;

    pub(super) static AVX512: [TileFn; 12] = [
        avx512::<1>,
        avx512::<2>,
        avx512::<3>,
        avx512::<4>,
        avx512::<5>,
        avx512::<6>,
        avx512::<7>,
        avx512::<8>,
        avx512::<9>,
        avx512::<10>,
        avx512::<11>,
        avx512::<12>,
    ];

    pub(super) static AVX2: [TileFn; 6] = [avx2::<1>, avx2::<2>, avx2::<3>, avx2::<4>, avx2::<5>, avx2::<6>];

    /// Two vectors of 16 columns: with 12 rows, 24 of the 32 registers hold sums.
    ///
    /// # Safety
    /// As [`super::Micro::tile`] with `rows = R` and `nr = 32`, on a machine with AVX-512 F.
    #[target_feature(enable = "avx512f")]
    unsafe fn avx512<const R: usize>(
        depth: usize,
        (mut a, row, column): (*const f32, usize, usize),
        mut b: *const f32,
        (c, pitch): (*mut f32, usize),
        add: bool,
        mut ahead: Ahead,
    ) {
        // SAFETY: the caller's promise, for every access below.
        unsafe {
            let mut low = [_mm512_setzero_ps(); R];
            let mut high = [_mm512_setzero_ps(); R];
            if add {
                for r in 0..R {
                    low[r] = _mm512_loadu_ps(c.add(r * pitch));
                    high[r] = _mm512_loadu_ps(c.add(r * pitch + 16));
                }
            }
            for k in 0..depth {
                let (left, right) = (_mm512_loadu_ps(b), _mm512_loadu_ps(b.add(16)));
                for r in 0..R {
                    let factor = _mm512_set1_ps(*a.add(r * row));
                    low[r] = _mm512_fmadd_ps(factor, left, low[r]);
                    high[r] = _mm512_fmadd_ps(factor, right, high[r]);
                }
                a = a.add(column);
                b = b.add(32);
                if R > FEW_ROWS || k & ahead.skipped == 0 {
                    _mm_prefetch::<_MM_HINT_T1>(ahead.start.cast());
                }
                ahead.start = ahead.start.wrapping_add(ahead.step);
            }
            for r in 0..R {
                _mm512_storeu_ps(c.add(r * pitch), low[r]);
                _mm512_storeu_ps(c.add(r * pitch + 16), high[r]);
            }
        }
    }

    /// Two vectors of 8 columns: with 6 rows, 12 of the 16 registers hold sums.
    ///
    /// # Safety
    /// As [`super::Micro::tile`] with `rows = R` and `nr = 16`, on a machine with AVX2 and FMA.
    #[target_feature(enable = "avx2,fma")]
    unsafe fn avx2<const R: usize>(
        depth: usize,
        (mut a, row, column): (*const f32, usize, usize),
        mut b: *const f32,
        (c, pitch): (*mut f32, usize),
        add: bool,
        mut ahead: Ahead,
    ) {
        // SAFETY: the caller's promise, for every access below.
        unsafe {
            let mut low = [_mm256_setzero_ps(); R];
            let mut high = [_mm256_setzero_ps(); R];
            if add {
                for r in 0..R {
                    low[r] = _mm256_loadu_ps(c.add(r * pitch));
                    high[r] = _mm256_loadu_ps(c.add(r * pitch + 8));
                }
            }
            for k in 0..depth {
                let (left, right) = (_mm256_loadu_ps(b), _mm256_loadu_ps(b.add(8)));
                for r in 0..R {
                    let factor = _mm256_set1_ps(*a.add(r * row));
                    low[r] = _mm256_fmadd_ps(factor, left, low[r]);
                    high[r] = _mm256_fmadd_ps(factor, right, high[r]);
                }
                a = a.add(column);
                b = b.add(16);
                if R > FEW_ROWS || k & ahead.skipped == 0 {
                    _mm_prefetch::<_MM_HINT_T1>(ahead.start.cast());
                }
                ahead.start = ahead.start.wrapping_add(ahead.step);
            }
            for r in 0..R {
                _mm256_storeu_ps(c.add(r * pitch), low[r]);
                _mm256_storeu_ps(c.add(r * pitch + 8), high[r]);
            }
        }
    }
}

#[cfg(target_arch = "aarch64")]
mod arm {
    use super::{Ahead, TileFn};
    use crate::gemm::FEW_ROWS;
    use std::arch::{aarch64::*, asm};

    pub(super) static NEON: [TileFn; 6] = [neon::<1>, neon::<2>, neon::<3>, neon::<4>, neon::<5>, neon::<6>];

    /// Vectors of 4 columns: with 6 rows, 24 of the 32 registers hold sums.
    const VECTORS: usize = 4;

    /// # Safety
    /// As [`super::Micro::tile`] with `rows = R` and `nr = 16`, on a machine with NEON.
    #[target_feature(enable = "neon")]
    unsafe fn neon<const R: usize>(
        depth: usize,
        (mut a, row, column): (*const f32, usize, usize),
        mut b: *const f32,
        (c, pitch): (*mut f32, usize),
        add: bool,
        mut ahead: Ahead,
    ) {
        // SAFETY: the caller's promise, for every access below; a prefetch may ask for any address.
        unsafe {
            let mut sums = [[vdupq_n_f32(0.0); VECTORS]; R];
            if add {
                for r in 0..R {
                    for v in 0..VECTORS {
                        sums[r][v] = vld1q_f32(c.add(r * pitch + 4 * v));
                    }
                }
            }
            for k in 0..depth {
                let mut line = [vdupq_n_f32(0.0); VECTORS];
                for v in 0..VECTORS {
                    line[v] = vld1q_f32(b.add(4 * v));
                }
                for r in 0..R {
                    let factor = *a.add(r * row);
                    for v in 0..VECTORS {
                        sums[r][v] = vfmaq_n_f32(sums[r][v], line[v], factor);
                    }
                }
                a = a.add(column);
                b = b.add(4 * VECTORS);
                if R > FEW_ROWS || k & ahead.skipped == 0 {
                    // Stable Rust has no intrinsic for it.
                    asm!("prfm pldl2keep, [{}]", in(reg) ahead.start, options(nostack, readonly, preserves_flags));
                }
                ahead.start = ahead.start.wrapping_add(ahead.step);
            }
            for r in 0..R {
                for v in 0..VECTORS {
                    vst1q_f32(c.add(r * pitch + 4 * v), sums[r][v]);
                }
            }
        }
    }
}
