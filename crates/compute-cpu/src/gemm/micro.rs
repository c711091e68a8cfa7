//! Micro-kernels: a tile of C in registers, one column of A times one row of a panel of B at a time.

use super::TILE;
use crate::Isa;
use crate::vector::{multiply_add, within};

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

/// Of a tile with so many rows: its product, all of which has to lie where [`Micro::tile`] says.
type TileFn = unsafe fn(&Product<'_>);

/// A tile of C and what it comes from: `C[rows, nr] = end(sums[rows, nr] + A[rows, depth] · B[depth, nr])`.
#[derive(Clone, Copy)]
pub(crate) struct Product<'a> {
    /// A: start, distance of rows, distance of columns.
    pub a: (*const f32, usize, usize),
    /// The columns of A lie in runs: where one starts, counted in floats, and how many it has. All together are `depth`.
    pub runs: &'a [(usize, usize)],
    /// A panel of B.
    pub b: *const f32,
    /// What is added to: start, distance of rows. Null: nothing.
    pub sums: (*const f32, usize),
    /// Start, distance of rows.
    pub c: (*mut f32, usize),
    pub end: Option<End>,
    /// What is needed soon.
    pub ahead: Ahead,
}

/// What happens to sums in registers before they become C.
#[derive(Clone, Copy)]
pub(crate) struct End {
    /// Added to each row, `nr` numbers. Null: nothing.
    pub bias: *const f32,
    /// Added then; its rows are as far apart as those of C. Null: nothing.
    pub residual: *const f32,
    /// What is below becomes this; NaN stays.
    pub low: f32,
    /// What is above becomes this.
    pub high: f32,
}

impl<'a> Product<'a> {
    /// A product that adds to nothing and ends as it is.
    #[inline(always)]
    pub fn new(
        runs: &'a [(usize, usize)],
        a: (*const f32, usize, usize),
        b: *const f32,
        c: (*mut f32, usize),
    ) -> Product<'a> {
        Product { a, runs, b, sums: (std::ptr::null(), 0), c, end: None, ahead: Ahead::none(b) }
    }
}

/// Memory that is read soon, two ranges of it: with every second step in depth a micro-kernel asks for a cache line of
/// each, so that they come while others are computed on.
#[cfg_attr(
    not(any(target_arch = "x86_64", target_arch = "aarch64")),
    expect(dead_code, reason = "the portable kernel leaves it to the hardware")
)]
#[derive(Clone, Copy)]
pub(crate) struct Ahead {
    /// Need not be readable.
    start: [*const f32; 2],
    /// Floats from one time to the next.
    step: [usize; 2],
}

// Compiled into the loops that call a micro-kernel: what it reads was written one by one a moment ago, and is not to be
// copied in larger pieces before.
impl Ahead {
    /// Floats of a cache line.
    const LINE: usize = 16;
    /// Floats to the page whose lines begin to come while a panel is read from start to end: two pages.
    const STREAM: usize = 2048;

    /// What the product number `call` of `calls`, all `depth` deep, asks for of the `len` floats from `next` on: its
    /// share, at even distances. Many lines asked for at once would stand in the way of what the product itself reads.
    #[inline(always)]
    pub fn share(next: *const f32, len: usize, (call, calls): (usize, usize), depth: usize) -> Ahead {
        let share = len.div_ceil(calls).next_multiple_of(Ahead::LINE);
        let start = next.wrapping_add(call * share);
        let times = (depth / 2).max(1);
        if share <= times * Ahead::LINE {
            return Ahead { start: [start; 2], step: [share.div_ceil(times), 0] };
        }
        // More than a line each time.
        let step = share.div_ceil(2 * times).min(Ahead::LINE);
        Ahead { start: [start, start.wrapping_add(share / 2)], step: [step; 2] }
    }

    /// The same, but the second range is that of `len` floats from `start` on, as much of it as one product of this
    /// depth can ask for.
    #[inline(always)]
    pub fn and(self, start: *const f32, len: usize, depth: usize) -> Ahead {
        let step = len.div_ceil((depth / 2).max(1)).min(Ahead::LINE);
        Ahead { start: [self.start[0], start], step: [self.step[0], step] }
    }

    /// For few rows, which take less time than their panel takes to come, read from start to end with all that
    /// follow: a line of a page ahead now and then, for these kernels ask only every eighth step. The hardware fetches
    /// the others, but begins no page by itself; asking for each of them would only take time.
    #[inline(always)]
    pub fn stream(micro: &Micro, panel: *const f32) -> Ahead {
        let start = panel.wrapping_add(Ahead::STREAM);
        Ahead { start: [start; 2], step: [8 * micro.nr, 0] }
    }

    /// One line again and again, which is there already.
    #[inline(always)]
    pub fn none(near: *const f32) -> Ahead {
        Ahead { start: [near; 2], step: [0; 2] }
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

    /// Multiplies one tile.
    ///
    /// # Safety
    /// `rows` is between 1 and `mr`; A is valid for `rows` and all runs, B for `depth·nr` elements; C and, where they
    /// are not null, sums and residual for `rows` of `nr` elements, the bias for `nr`.
    #[inline(always)]
    pub unsafe fn tile(&self, rows: usize, product: &Product<'_>) {
        // SAFETY: the caller's promise; `Micro::new` chose instructions that the machine has.
        unsafe { self.tiles[rows - 1](product) }
    }
}

static PORTABLE: [TileFn; 6] =
    [portable::<1>, portable::<2>, portable::<3>, portable::<4>, portable::<5>, portable::<6>];

/// Plain loops over arrays, which the compiler turns into four lanes of SSE or NEON.
///
/// # Safety
/// As [`Micro::tile`] with `rows = R` and `nr = 8`.
unsafe fn portable<const R: usize>(product: &Product<'_>) {
    let Product { a: (start, row, column), mut b, sums: (from, from_pitch), c: (c, pitch), .. } = *product;
    let mut sums = [[0f32; 8]; R];
    // SAFETY: the caller's promise, for every access below.
    unsafe {
        if !from.is_null() {
            for (r, sums) in sums.iter_mut().enumerate() {
                sums.copy_from_slice(std::slice::from_raw_parts(from.add(r * from_pitch), 8));
            }
        }
        for &(offset, depth) in product.runs {
            let mut a = start.add(offset);
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
        }
        for (r, sums) in sums.iter_mut().enumerate() {
            for (column, sum) in sums.iter_mut().enumerate() {
                let Some(end) = &product.end else { break };
                if !end.bias.is_null() {
                    *sum += *end.bias.add(column);
                }
                if !end.residual.is_null() {
                    *sum += *end.residual.add(r * pitch + column);
                }
                *sum = within(*sum, (end.low, end.high));
            }
            std::slice::from_raw_parts_mut(c.add(r * pitch), 8).copy_from_slice(sums);
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{Ahead, Product, TileFn};
    use crate::gemm::FEW_ROWS;
    use crate::vector::rows;
    use std::arch::{asm, x86_64::*};

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

    /// Lets the compiler forget where an address comes from.
    #[inline(always)]
    #[expect(clippy::pointers_in_nomem_asm_block, reason = "nothing is read or written there")]
    fn unknown(address: &mut *const f32) {
        let mut place = *address;
        // SAFETY: no instruction at all.
        unsafe { asm!("/* {0} */", inout(reg) place, options(pure, nomem, nostack, preserves_flags)) };
        *address = place;
    }

    /// Asks for what comes next, in a kernel of `R` rows with `left` steps before it, an even number.
    #[inline(always)]
    fn ask<const R: usize>(ahead: &mut Ahead, left: usize) {
        if R > FEW_ROWS || left.is_multiple_of(8) {
            for i in 0..if R > FEW_ROWS { 2 } else { 1 } {
                // SAFETY: any address may be asked for.
                unsafe { _mm_prefetch::<_MM_HINT_T1>(ahead.start[i].cast()) };
                ahead.start[i] = ahead.start[i].wrapping_add(ahead.step[i]);
            }
        }
    }

    /// Two vectors of 16 columns: with 12 rows, 24 of the 32 registers hold sums.
    ///
    /// # Safety
    /// As [`super::Micro::tile`] with `rows = R` and `nr = 32`, on a machine with AVX-512 F.
    #[target_feature(enable = "avx512f")]
    unsafe fn avx512<const R: usize>(product: &Product<'_>) {
        let Product { a: (start, row, column), mut b, sums, c: (c, pitch), mut ahead, .. } = *product;
        // SAFETY: the caller's promise, for every access below.
        unsafe {
            let mut low = [_mm512_setzero_ps(); R];
            let mut high = [_mm512_setzero_ps(); R];
            if !sums.0.is_null() {
                rows!(r in R => {
                    low[r] = _mm512_loadu_ps(sums.0.add(r * sums.1));
                    high[r] = _mm512_loadu_ps(sums.0.add(r * sums.1 + 16));
                });
            }
            // A step in depth: `$factor` of row `$r` times the line of the panel at `$line`. A macro, for closures over
            // vectors may be compiled apart.
            macro_rules! step {
                ($line:expr, $r:ident => $factor:expr) => {
                    let (left, right) = (_mm512_loadu_ps($line), _mm512_loadu_ps($line.add(16)));
                    rows!($r in R => {
                        let factor = _mm512_set1_ps(*$factor);
                        low[$r] = _mm512_fmadd_ps(factor, left, low[$r]);
                        high[$r] = _mm512_fmadd_ps(factor, right, high[$r]);
                    });
                };
            }
            for &(offset, depth) in product.runs {
                let (mut a, mut left) = (start.add(offset), depth);
                if column == 1 {
                    // Addresses of every third row. The compiler is not to know where they come from: it would add up
                    // those of all rows one after the other in every step, which takes as long as the products.
                    let (mut p0, mut p3) = (a, a.wrapping_add(3 * row));
                    let (mut p6, mut p9) = (p3.wrapping_add(3 * row), p3.wrapping_add(6 * row));
                    macro_rules! third {
                        ($r:ident) => {
                            match $r / 3 {
                                0 => p0,
                                1 => p3,
                                2 => p6,
                                _ => p9,
                            }
                            .add($r % 3 * row)
                        };
                    }
                    while left >= 2 {
                        unknown(&mut p0);
                        if R > 3 {
                            unknown(&mut p3)
                        }
                        if R > 6 {
                            unknown(&mut p6)
                        }
                        if R > 9 {
                            unknown(&mut p9)
                        }
                        step!(b, r => third!(r));
                        step!(b.add(32), r => third!(r).add(1));
                        (p0, p3) = (p0.wrapping_add(2), p3.wrapping_add(2));
                        (p6, p9) = (p6.wrapping_add(2), p9.wrapping_add(2));
                        b = b.add(64);
                        left -= 2;
                        ask::<R>(&mut ahead, left);
                    }
                    a = p0;
                } else if row == 1 {
                    while left >= 2 {
                        step!(b, r => a.add(r));
                        step!(b.add(32), r => a.add(column + r));
                        (a, b) = (a.add(2 * column), b.add(64));
                        left -= 2;
                        ask::<R>(&mut ahead, left);
                    }
                }
                while left > 0 {
                    step!(b, r => a.add(r * row));
                    (a, b) = (a.add(column), b.add(32));
                    left -= 1;
                    if left.is_multiple_of(2) {
                        ask::<R>(&mut ahead, left);
                    }
                }
            }
            if let Some(end) = &product.end {
                let (least, most) = (_mm512_set1_ps(end.low), _mm512_set1_ps(end.high));
                let mut bias = [_mm512_setzero_ps(); 2];
                if !end.bias.is_null() {
                    bias = [_mm512_loadu_ps(end.bias), _mm512_loadu_ps(end.bias.add(16))];
                }
                rows!(r in R => {
                    low[r] = _mm512_add_ps(low[r], bias[0]);
                    high[r] = _mm512_add_ps(high[r], bias[1]);
                });
                if !end.residual.is_null() {
                    rows!(r in R => {
                        low[r] = _mm512_add_ps(low[r], _mm512_loadu_ps(end.residual.add(r * pitch)));
                        high[r] = _mm512_add_ps(high[r], _mm512_loadu_ps(end.residual.add(r * pitch + 16)));
                    });
                }
                // Of two numbers one of which is NaN, the second.
                rows!(r in R => {
                    low[r] = _mm512_min_ps(most, _mm512_max_ps(least, low[r]));
                    high[r] = _mm512_min_ps(most, _mm512_max_ps(least, high[r]));
                });
            }
            rows!(r in R => {
                _mm512_storeu_ps(c.add(r * pitch), low[r]);
                _mm512_storeu_ps(c.add(r * pitch + 16), high[r]);
            });
        }
    }

    /// Two vectors of 8 columns: with 6 rows, 12 of the 16 registers hold sums.
    ///
    /// # Safety
    /// As [`super::Micro::tile`] with `rows = R` and `nr = 16`, on a machine with AVX2 and FMA.
    #[target_feature(enable = "avx2,fma")]
    unsafe fn avx2<const R: usize>(product: &Product<'_>) {
        let Product { a: (start, row, column), mut b, sums, c: (c, pitch), mut ahead, .. } = *product;
        // SAFETY: the caller's promise, for every access below.
        unsafe {
            let mut low = [_mm256_setzero_ps(); R];
            let mut high = [_mm256_setzero_ps(); R];
            if !sums.0.is_null() {
                for r in 0..R {
                    low[r] = _mm256_loadu_ps(sums.0.add(r * sums.1));
                    high[r] = _mm256_loadu_ps(sums.0.add(r * sums.1 + 8));
                }
            }
            for &(offset, depth) in product.runs {
                let mut a = start.add(offset);
                for k in 0..depth {
                    let (left, right) = (_mm256_loadu_ps(b), _mm256_loadu_ps(b.add(8)));
                    for r in 0..R {
                        let factor = _mm256_set1_ps(*a.add(r * row));
                        low[r] = _mm256_fmadd_ps(factor, left, low[r]);
                        high[r] = _mm256_fmadd_ps(factor, right, high[r]);
                    }
                    (a, b) = (a.add(column), b.add(16));
                    if k.is_multiple_of(2) {
                        ask::<R>(&mut ahead, k);
                    }
                }
            }
            if let Some(end) = &product.end {
                let (least, most) = (_mm256_set1_ps(end.low), _mm256_set1_ps(end.high));
                let mut bias = [_mm256_setzero_ps(); 2];
                if !end.bias.is_null() {
                    bias = [_mm256_loadu_ps(end.bias), _mm256_loadu_ps(end.bias.add(8))];
                }
                for r in 0..R {
                    low[r] = _mm256_add_ps(low[r], bias[0]);
                    high[r] = _mm256_add_ps(high[r], bias[1]);
                    if !end.residual.is_null() {
                        low[r] = _mm256_add_ps(low[r], _mm256_loadu_ps(end.residual.add(r * pitch)));
                        high[r] = _mm256_add_ps(high[r], _mm256_loadu_ps(end.residual.add(r * pitch + 8)));
                    }
                    // Of two numbers one of which is NaN, the second.
                    low[r] = _mm256_min_ps(most, _mm256_max_ps(least, low[r]));
                    high[r] = _mm256_min_ps(most, _mm256_max_ps(least, high[r]));
                }
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
    use super::{Product, TileFn};
    use crate::gemm::FEW_ROWS;
    use std::arch::{aarch64::*, asm};

    pub(super) static NEON: [TileFn; 6] = [neon::<1>, neon::<2>, neon::<3>, neon::<4>, neon::<5>, neon::<6>];

    /// Vectors of 4 columns: with 6 rows, 24 of the 32 registers hold sums.
    const VECTORS: usize = 4;

    /// # Safety
    /// As [`super::Micro::tile`] with `rows = R` and `nr = 16`, on a machine with NEON.
    #[target_feature(enable = "neon")]
    unsafe fn neon<const R: usize>(product: &Product<'_>) {
        let Product { a: (start, row, column), mut b, sums: from, c: (c, pitch), mut ahead, .. } = *product;
        // SAFETY: the caller's promise, for every access below; a prefetch may ask for any address.
        unsafe {
            let mut sums = [[vdupq_n_f32(0.0); VECTORS]; R];
            if !from.0.is_null() {
                for r in 0..R {
                    for v in 0..VECTORS {
                        sums[r][v] = vld1q_f32(from.0.add(r * from.1 + 4 * v));
                    }
                }
            }
            for &(offset, depth) in product.runs {
                let mut a = start.add(offset);
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
                    (a, b) = (a.add(column), b.add(4 * VECTORS));
                    if k.is_multiple_of(2) && (R > FEW_ROWS || k.is_multiple_of(8)) {
                        for (start, step) in ahead.start.iter_mut().zip(ahead.step) {
                            // Stable Rust has no intrinsic for it.
                            asm!("prfm pldl2keep, [{}]", in(reg) *start, options(nostack, readonly, preserves_flags));
                            *start = start.wrapping_add(step);
                        }
                    }
                }
            }
            if let Some(end) = &product.end {
                let (least, most) = (vdupq_n_f32(end.low), vdupq_n_f32(end.high));
                for r in 0..R {
                    for v in 0..VECTORS {
                        if !end.bias.is_null() {
                            sums[r][v] = vaddq_f32(sums[r][v], vld1q_f32(end.bias.add(4 * v)));
                        }
                        if !end.residual.is_null() {
                            sums[r][v] = vaddq_f32(sums[r][v], vld1q_f32(end.residual.add(r * pitch + 4 * v)));
                        }
                        sums[r][v] = vminq_f32(most, vmaxq_f32(least, sums[r][v]));
                    }
                }
            }
            for r in 0..R {
                for v in 0..VECTORS {
                    vst1q_f32(c.add(r * pitch + 4 * v), sums[r][v]);
                }
            }
        }
    }
}
