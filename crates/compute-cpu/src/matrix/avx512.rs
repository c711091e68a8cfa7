//! Blocks with AVX-512: each `vdpbf16ps` (BF16) or `vpdpbusd` (VNNI) adds the products of a group of rows of
//! the panel to 16 sums. They leave nothing idle; what fetches ahead by itself keeps up with them only where a panel is
//! near, so that they ask for what comes next as tiles do.

use super::multiply::STRIP;
use super::strips::{self, Many, Share};
use super::{Ahead, BLOCK, Begin, Block, Factor, Left, PANEL_STEP_BYTES, STEP_BYTES};
use crate::prefetch;
use std::arch::x86_64::*;

/// Multiplies the rows of some strips, one behind the other from the first pointer on, by the panel at the second, beginning
/// with what the block begins with, and ends them as the third says. Meanwhile memory is asked for.
type Strip = unsafe fn(*const u8, &Left<'_>, *const u8, Begin<u32>, *mut u8, Many, &Share);

/// Strips of 1 to 8 rows.
pub type Strips = [Strip; STRIP];

/// Strips of 1 to 16 rows that compute the first half of the columns.
pub type Halves = [Strip; 2 * STRIP];

/// What becomes of the sums of strips.
pub(crate) trait End: Sized {
    /// Whether sums begin with something of the end's.
    const BEGINS: bool = false;

    /// The end that this tells of, if it is one of these.
    ///
    /// # Safety
    /// The pointer is to what this end is told, and the machine has AVX-512 with what the end needs of it.
    unsafe fn of(told: *mut u8) -> Option<Self>;

    /// What sums begin with, as integers: for each half of the columns the same in every row.
    ///
    /// # Safety
    /// As [`End::of`].
    unsafe fn begin(&self) -> [__m512i; 2] {
        // SAFETY: the caller's promise.
        unsafe { [_mm512_setzero_si512(); 2] }
    }

    /// Ends the sums of rows from a row of the block on, given by their bits: the first half of the columns and, where it
    /// is the `WHOLE`, the second.
    ///
    /// # Safety
    /// As [`End::of`].
    unsafe fn end<const ROWS: usize, const WHOLE: bool>(&self, row: usize, low: [__m512i; ROWS], high: [__m512i; ROWS]);

    /// The same of three quarters of the columns: the first 16, and the last 16, half of which are the same.
    ///
    /// # Safety
    /// As [`End::of`].
    unsafe fn end_three_quarters<const ROWS: usize>(&self, row: usize, first: [__m512i; ROWS], last: [__m512i; ROWS]);
}

/// Sums stay what they are, in those of a block.
struct Kept(*mut u8);

impl End for Kept {
    #[inline(always)]
    unsafe fn of(sums: *mut u8) -> Option<Kept> {
        Some(Kept(sums))
    }

    #[inline(always)]
    unsafe fn end<const ROWS: usize, const WHOLE: bool>(
        &self,
        row: usize,
        low: [__m512i; ROWS],
        high: [__m512i; ROWS],
    ) {
        const HALF: usize = size_of::<__m512i>();
        // SAFETY: the block has sums for the rows.
        unsafe {
            for r in 0..ROWS {
                let to = self.0.add((row + r) * 2 * HALF);
                _mm512_store_si512(to.cast(), low[r]);
                if WHOLE {
                    _mm512_store_si512(to.add(HALF).cast(), high[r]);
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn end_three_quarters<const ROWS: usize>(&self, row: usize, first: [__m512i; ROWS], last: [__m512i; ROWS]) {
        const HALF: usize = size_of::<__m512i>();
        // SAFETY: as above.
        unsafe {
            for r in 0..ROWS {
                let to = self.0.add((row + r) * 2 * HALF);
                _mm512_store_si512(to.cast(), first[r]);
                to.add(HALF / 2).cast::<Anywhere<__m512i>>().write(Anywhere(last[r]));
            }
        }
    }
}

/// Strips that end the rows of a block in registers, and what they are told.
pub struct Ends {
    /// [`Strips`], also of three quarters of the columns, or, where no more columns count, [`Halves`].
    pub strips: &'static [Strip],
    pub told: *mut u8,
}

/// Of the 32 registers 16 hold the sums.
pub(super) struct Kinds {
    /// Strips of 1 to 8 rows.
    whole: Strips,
    half: Halves,
    /// The same of three quarters of the columns.
    three_quarters: Strips,
    /// Strips of few rows whose panels come by themselves, as fast as memory gives them: nothing is asked for.
    few: [Strip; FEW_ROWS],
}

/// Whether the machine has what strips need beside their products.
pub(super) fn is_available() -> bool {
    let has_wide = is_x86_feature_detected!("avx512bw") && is_x86_feature_detected!("avx512dq");
    has_wide
        && is_x86_feature_detected!("avx512vl")
        && is_x86_feature_detected!("fma")
        && is_x86_feature_detected!("f16c")
}

/// So few rows take less time to be multiplied than the panel takes to come from memory.
pub(super) const FEW_ROWS: usize = 2;
/// Sums in turns of each column of few rows: one waits longer for the one before than the panel takes to come.
const CHAINS: usize = 2;
/// Bytes from what few rows are multiplied by to what is asked for then: as many as hide how far memory is.
const AHEAD: usize = 8192;
/// Groups of a whole step.
const GROUPS: usize = STEP_BYTES / 4;

/// A value at any address. With debug assertions `read_unaligned`, which the loads of `std::arch` are made of, looks at
/// each address twice: in the innermost loop that takes longer than the products, and the unit was not chosen.
#[repr(C, packed)]
struct Anywhere<T>(T);

const WHOLE_HEIGHTS: [u8; BLOCK + 1] = strips::heights(STRIP);
const HALF_HEIGHTS: [u8; BLOCK + 1] = strips::heights(2 * STRIP);

/// # Safety
/// As [`super::Tiles::block`], on a machine with the strips' instructions.
pub(super) unsafe fn block<F: Factor>(kinds: &Kinds, block: &Block<'_, F>) {
    let &Block { ref left, panel, columns, rows, begin, to, ends, ahead, .. } = block;
    let told = ends.map_or(to.cast(), |ends| ends.told);
    let (kinds, heights, most): (&[Strip], _, _) = match ends {
        Some(ends) if ends.strips.len() > STRIP => (ends.strips, &HALF_HEIGHTS, 2 * STRIP),
        Some(ends) => (ends.strips, &WHOLE_HEIGHTS, STRIP),
        None if columns <= BLOCK / 2 => (&kinds.half, &HALF_HEIGHTS, 2 * STRIP),
        None if rows <= FEW_ROWS && prefetch::follows_pages() => (&kinds.few, &WHOLE_HEIGHTS, STRIP),
        None if columns <= BLOCK / 4 * 3 => (&kinds.three_quarters, &WHOLE_HEIGHTS, STRIP),
        None => (&kinds.whole, &WHOLE_HEIGHTS, STRIP),
    };
    strips::by_lines(left, rows, (heights, most), ahead, |height, first, many, share| {
        // SAFETY: the caller's promise for these rows; so few have a strip.
        unsafe { kinds[height - 1](first, left, panel, begin.bits(), told, many, share) };
    });
}

/// [`Strips`] of 32-bit sums by an instruction that multiplies groups of 4 bytes.
macro_rules! strips {
    ($strips:ident, $halves:ident, $name:ident, $features:literal, $dot:expr) => {
/// Strips of so many rows, with an end of their own.
        #[rustfmt::skip]
        pub(crate) const fn $strips<E: End>() -> &'static Strips {
            const {
                &[
                    $name::<1, true, E>, $name::<2, true, E>, $name::<3, true, E>, $name::<4, true, E>,
                    $name::<5, true, E>, $name::<6, true, E>, $name::<7, true, E>, $name::<8, true, E>,
                ]
            }
        }

/// The same of halves.
        #[rustfmt::skip]
        pub(crate) const fn $halves<E: End>() -> &'static Halves {
            const {
                &[
                    $name::<1, false, E>, $name::<2, false, E>, $name::<3, false, E>, $name::<4, false, E>,
                    $name::<5, false, E>, $name::<6, false, E>, $name::<7, false, E>, $name::<8, false, E>,
                    $name::<9, false, E>, $name::<10, false, E>, $name::<11, false, E>, $name::<12, false, E>,
                    $name::<13, false, E>, $name::<14, false, E>, $name::<15, false, E>, $name::<16, false, E>,
                ]
            }
        }

        /// # Safety
        /// As [`block`] for the rows of these strips.
        #[target_feature(enable = $features)]
        unsafe fn $name<const ROWS: usize, const WHOLE: bool, E: End>(
            mut first: *const u8,
            left: &Left<'_>,
            panel: *const u8,
            begin: Begin<u32>,
            told: *mut u8,
            many: Many,
            share: &Share,
        ) {
            const HALF: usize = size_of::<__m512i>();
            let pitch = left.pitch;
            // SAFETY: the caller's promise, for every access below. All vectors are 64 bytes of any contents.
            unsafe {
                let Some(end) = E::of(told) else { return debug_assert!(false, "an end of another kind") };
                let [own_low, own_high] = if E::BEGINS { end.begin() } else { [_mm512_setzero_si512(); 2] };
                let mut row = many.row;
                for strip in 0..many.strips {
                    let (mut low, mut high) = ([own_low; ROWS], [own_high; ROWS]);
                    if let Some(from) = begin.of_row(row) {
                        for r in 0..ROWS {
                            let from = from.add(r * begin.apart).cast::<Anywhere<__m512i>>();
                            low[r] = if E::BEGINS { _mm512_add_epi32(low[r], (*from).0) } else { (*from).0 };
                            if WHOLE {
                                let from = (*from.add(1)).0;
                                high[r] = if E::BEGINS { _mm512_add_epi32(high[r], from) } else { from };
                            }
                        }
                    }
                    let Ahead { start: mut wanted, lines, apart, each } = share.of(strip);
                    let mut panel = panel;
                    for (step, &offset) in left.offsets.iter().enumerate() {
                        for line in 0..lines {
                            prefetch::to_second_level(wanted.wrapping_add(line * apart));
                        }
                        wanted = wanted.wrapping_add(each);
                        let depth = left.depths.get(step).map_or(GROUPS, |&depth| usize::from(depth));
                        let mut a = first.wrapping_add(offset);
                        for group in 0..depth {
                            let line = panel.wrapping_add(group * 2 * HALF);
                            if ROWS <= FEW_ROWS {
                                _mm_prefetch::<_MM_HINT_T0>(line.wrapping_add(AHEAD).cast());
                                if WHOLE {
                                    _mm_prefetch::<_MM_HINT_T0>(line.wrapping_add(AHEAD + HALF).cast());
                                }
                                if (group * 2 * HALF).is_multiple_of(prefetch::PAGE_STEP) {
                                    prefetch::page_ahead(line);
                                }
                            }
                            let b0 = (*line.cast::<Anywhere<__m512i>>()).0;
                            let b1 = (*line.wrapping_add(HALF).cast::<Anywhere<__m512i>>()).0;
                            for r in 0..ROWS {
                                let group = (*a.wrapping_add(r * pitch).cast::<Anywhere<i32>>()).0;
                                let group = _mm512_set1_epi32(group);
                                low[r] = $dot(low[r], group, b0);
                                if WHOLE {
                                    high[r] = $dot(high[r], group, b1);
                                }
                            }
                            a = a.wrapping_add(4);
                        }
                        panel = panel.wrapping_add(PANEL_STEP_BYTES);
                    }
                    end.end::<ROWS, WHOLE>(row, low, high);
                    first = first.wrapping_add(ROWS * pitch);
                    row += ROWS;
                }
            }
        }
    };
}

/// The same of three quarters of the columns: what two rows have beside a register of each is in one that they share.
macro_rules! three_quarters {
    ($strips:ident, $name:ident, $features:literal, $dot:expr) => {
/// Strips of so many rows, with an end of their own.
        #[rustfmt::skip]
        pub(crate) const fn $strips<E: End>() -> &'static Strips {
            const {
                &[
                    $name::<1, 1, E>, $name::<2, 1, E>, $name::<3, 2, E>, $name::<4, 2, E>,
                    $name::<5, 3, E>, $name::<6, 3, E>, $name::<7, 4, E>, $name::<8, 4, E>,
                ]
            }
        }

        /// `PAIRS` are half as many as the rows.
        ///
        /// # Safety
        /// As [`block`] for the rows of these strips.
        #[target_feature(enable = $features)]
        unsafe fn $name<const ROWS: usize, const PAIRS: usize, E: End>(
            mut first: *const u8,
            left: &Left<'_>,
            panel: *const u8,
            begin: Begin<u32>,
            told: *mut u8,
            many: Many,
            share: &Share,
        ) {
            const HALF: usize = size_of::<__m512i>();
            const { assert!(ROWS.div_ceil(2) == PAIRS && !E::BEGINS) }
            // The second row of a pair, whose numbers are in the upper half of the register; an odd one out is beside itself.
            let second = |pair: usize| if pair + PAIRS < ROWS { pair + PAIRS } else { pair };
            // Known to the compiler, it makes a permutation of this, for which products have to wait.
            let upper: __mmask16 = std::hint::black_box(0xff00);
            let pitch = left.pitch;
            // SAFETY: the caller's promise, for every access below. All vectors are 64 bytes of any contents, or 32.
            unsafe {
                let Some(end) = E::of(told) else { return debug_assert!(false, "an end of another kind") };
                let mut row = many.row;
                for strip in 0..many.strips {
                    let mut low = [_mm512_setzero_si512(); ROWS];
                    let mut shared = [_mm512_setzero_si512(); PAIRS];
                    if let Some(from) = begin.of_row(row) {
                        for r in 0..ROWS {
                            low[r] = (*from.add(r * begin.apart).cast::<Anywhere<__m512i>>()).0;
                        }
                        for pair in 0..PAIRS {
                            let rest =
                                |r: usize| (*from.add(r * begin.apart + BLOCK / 2).cast::<Anywhere<__m256i>>()).0;
                            let lower = _mm512_castsi256_si512(rest(pair));
                            shared[pair] = _mm512_inserti64x4::<1>(lower, rest(second(pair)));
                        }
                    }
                    let Ahead { start: mut wanted, lines, apart, each } = share.of(strip);
                    let mut panel = panel;
                    for (step, &offset) in left.offsets.iter().enumerate() {
                        for line in 0..lines {
                            prefetch::to_second_level(wanted.wrapping_add(line * apart));
                        }
                        wanted = wanted.wrapping_add(each);
                        let depth = left.depths.get(step).map_or(GROUPS, |&depth| usize::from(depth));
                        let (mut a, mut line) = (first.wrapping_add(offset), panel);
                        for _ in 0..depth {
                            let b = (*line.cast::<Anywhere<__m512i>>()).0;
                            let rest = _mm512_broadcast_i64x4((*line.wrapping_add(HALF).cast::<Anywhere<__m256i>>()).0);
                            let mut groups = [_mm512_setzero_si512(); ROWS];
                            for r in 0..ROWS {
                                groups[r] = _mm512_set1_epi32((*a.wrapping_add(r * pitch).cast::<Anywhere<i32>>()).0);
                                low[r] = $dot(low[r], groups[r], b);
                            }
                            for pair in 0..PAIRS {
                                let both = _mm512_mask_blend_epi32(upper, groups[pair], groups[second(pair)]);
                                shared[pair] = $dot(shared[pair], both, rest);
                            }
                            a = a.wrapping_add(4);
                            line = line.wrapping_add(2 * HALF);
                        }
                        panel = panel.wrapping_add(PANEL_STEP_BYTES);
                    }
                    // The last 16 columns: the upper half of the first, and what is shared.
                    let mut last = [_mm512_setzero_si512(); ROWS];
                    for pair in 0..PAIRS {
                        last[second(pair)] = _mm512_shuffle_i64x2::<0b11_10_11_10>(low[second(pair)], shared[pair]);
                        last[pair] = _mm512_shuffle_i64x2::<0b01_00_11_10>(low[pair], shared[pair]);
                    }
                    end.end_three_quarters::<ROWS>(row, low, last);
                    first = first.wrapping_add(ROWS * pitch);
                    row += ROWS;
                }
            }
        }
    };
}

/// [`Kinds`] of such strips, and those of few rows among them.
macro_rules! kinds {
    (
        $kinds:ident, $strips:ident, $halves:ident, $three_quarters:ident, $few:ident, $features:literal, $dot:expr,
        $plus:expr
    ) => {
#[rustfmt::skip]
        pub(super) static $kinds: Kinds = Kinds {
            whole: *$strips::<Kept>(),
            half: *$halves::<Kept>(),
            three_quarters: *$three_quarters::<Kept>(),
            few: [$few::<1>, $few::<2>],
        };

        /// # Safety
        /// As [`block`] for few rows.
        #[target_feature(enable = $features)]
        unsafe fn $few<const ROWS: usize>(
            first: *const u8,
            left: &Left<'_>,
            mut panel: *const u8,
            begin: Begin<u32>,
            sums_of_block: *mut u8,
            Many { row, strips }: Many,
            _: &Share,
        ) {
            const HALF: usize = size_of::<__m512i>();
            debug_assert_eq!(strips, 1, "rows of which there are few are one strip");
            // SAFETY: the caller's promise, for every access below. All vectors are 64 bytes of any contents.
            unsafe {
                let mut sums = [[[_mm512_setzero_si512(); 2]; ROWS]; CHAINS];
                if let Some(from) = begin.of_row(row) {
                    for (r, sums) in sums[0].iter_mut().enumerate() {
                        let from = from.add(r * begin.apart).cast::<Anywhere<__m512i>>();
                        *sums = [(*from).0, (*from.add(1)).0];
                    }
                }
                let add = |sums: &mut [[__m512i; 2]; ROWS], a: *const u8, line: *const u8| {
                    let b = [
                        (*line.cast::<Anywhere<__m512i>>()).0,
                        (*line.wrapping_add(HALF).cast::<Anywhere<__m512i>>()).0,
                    ];
                    for (r, sums) in sums.iter_mut().enumerate() {
                        let group = (*a.wrapping_add(r * left.pitch).cast::<Anywhere<i32>>()).0;
                        let group = _mm512_set1_epi32(group);
                        *sums = [$dot(sums[0], group, b[0]), $dot(sums[1], group, b[1])];
                    }
                };
                for (step, &offset) in left.offsets.iter().enumerate() {
                    let depth = left.depths.get(step).map_or(GROUPS, |&depth| usize::from(depth));
                    let (mut a, mut line) = (first.wrapping_add(offset), panel);
                    for _ in 0..depth / CHAINS {
                        for sums in &mut sums {
                            add(sums, a, line);
                            (a, line) = (a.wrapping_add(4), line.wrapping_add(2 * HALF));
                        }
                    }
                    for _ in 0..depth % CHAINS {
                        add(&mut sums[0], a, line);
                        (a, line) = (a.wrapping_add(4), line.wrapping_add(2 * HALF));
                    }
                    panel = panel.wrapping_add(PANEL_STEP_BYTES);
                }
                let [all, others @ ..] = &mut sums;
                for others in others {
                    for (all, other) in all.as_flattened_mut().iter_mut().zip(others.as_flattened()) {
                        *all = $plus(*all, *other);
                    }
                }
                for (index, &sum) in all.as_flattened().iter().enumerate() {
                    _mm512_store_si512(sums_of_block.add((2 * row + index) * HALF).cast(), sum);
                }
            }
        }
    };
}

strips!(
    u8_strips,
    u8_halves,
    strip_u8,
    "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c",
    _mm512_dpbusd_epi32
);
// Where ends round to bf16 in one instruction.
strips!(
    u8_strips_to_bf16,
    u8_halves_to_bf16,
    strip_u8_to_bf16,
    "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512bf16,avx2,fma,f16c",
    _mm512_dpbusd_epi32
);
strips!(bf16_strips, bf16_halves, strip_bf16, "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma,f16c", dot_bf16);
three_quarters!(
    u8_three_quarters,
    paired_u8,
    "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c",
    _mm512_dpbusd_epi32
);
three_quarters!(
    bf16_three_quarters,
    paired_bf16,
    "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma,f16c",
    dot_bf16
);
kinds!(
    U8,
    u8_strips,
    u8_halves,
    u8_three_quarters,
    few_u8,
    "avx512f,avx512vnni",
    _mm512_dpbusd_epi32,
    _mm512_add_epi32
);
kinds!(BF16, bf16_strips, bf16_halves, bf16_three_quarters, few_bf16, "avx512f,avx512bf16", dot_bf16, plus_f32);

/// Adds the bits of numbers.
///
/// # Safety
/// The machine has AVX-512 F.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn plus_f32(a: __m512i, b: __m512i) -> __m512i {
    _mm512_castps_si512(_mm512_add_ps(_mm512_castsi512_ps(a), _mm512_castsi512_ps(b)))
}

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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::matrix::Sums;
    use half::bf16;

    /// Few rows have strips of their own, which not every machine uses.
    fn check(strips: &Kinds, byte: &dyn Fn(usize) -> u8) {
        #[repr(C, align(64))]
        struct Line([u8; 64]);
        let lines = |count: usize, seed: usize| -> Vec<Line> {
            (0..count).map(|line| Line(std::array::from_fn(|at| byte(line * 64 + at + seed)))).collect()
        };
        for depths in [&[][..], &[16, 16, 16], &[16, 16, 5], &[1, 2, 3]] {
            let (rows, panel) = (lines(6, 4), lines(3 * PANEL_STEP_BYTES / 64, 2));
            let offsets = [0, 64, 128];
            let tiles = [rows.as_ptr().cast(); 2];
            let left = Left { depths, ..Left::of_tiles(tiles, 192, &offsets) };
            for height in 1..=FEW_ROWS {
                for has_sums in [false, true] {
                    let so_far = Sums([3u32; BLOCK * BLOCK]);
                    let begin = Begin::sums(if has_sums { &raw const so_far } else { std::ptr::null() });
                    let made = [strips.whole[height - 1], strips.few[height - 1]].map(|strip| {
                        let mut sums = Sums([0f32; BLOCK * BLOCK]);
                        // SAFETY: rows and panel have three steps, and the machine the instructions.
                        unsafe {
                            let to = (&raw mut sums).cast();
                            strip(tiles[0], &left, panel.as_ptr().cast(), begin, to, Many::ONE, &Share::NOTHING);
                        }
                        sums.0.map(f32::to_bits)
                    });
                    assert_eq!(made[0], made[1], "{height} rows, steps of {depths:?}, on sums: {has_sums}");
                    assert!(made[0][..height * BLOCK].iter().any(|&bits| bits != 0), "nothing was multiplied");
                }
            }
        }
    }

    #[test]
    fn few_rows_get_the_same_sums() {
        if is_x86_feature_detected!("avx512vnni") {
            check(&U8, &|at| (at * 151 % 256) as u8);
        }
        if is_x86_feature_detected!("avx512bf16") {
            // Small integers, so that every order of summation gives the same sum.
            check(&BF16, &|at| bf16::from_f32((at / 2 * 7 % 11) as f32 - 5.0).to_le_bytes()[at % 2]);
        }
    }
}
