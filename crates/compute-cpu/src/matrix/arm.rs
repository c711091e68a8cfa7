//! Blocks on arm64, by three families of instructions (Arm Architecture Reference Manual, C7.2):
//!
//! | family | instructions | adds to four sums |
//! |--------|--------------|-------------------|
//! | dot products | SDOT, BFDOT | a group of 4 bytes of one row by those of four columns |
//! | matrix products | USMMLA, SMMLA, BFMMLA | 8 bytes of two rows by those of two columns |
//! | widening products | FMLAL, FMLAL2 (FEAT_FHM) | a number of f16 of one row by those of four columns |
//!
//! A line of the panel has what a dot product wants; two lines, zipped group by group, have what a matrix
//! product wants. The even numbers of 16 bits of two registers beside each other, and the odd ones, are two rows of
//! eight columns, which is what widening products want. So one layout of packed weights serves all.
//!
//! Stable Rust has no intrinsics for these instructions: each is written as assembly in a function of its own,
//! around which the compiler chooses registers. A register counts as four sums, whatever it holds.

use super::{BLOCK, Begin, Block, GROUP_BYTES, Left, STEP_BYTES, strips};
use half::f16;
use std::arch::{aarch64::*, asm};

/// Rows and columns of a strip: 16 of the 32 registers hold sums.
pub(super) const STRIP: (usize, usize) = (ROWS, COLUMNS);
const ROWS: usize = 8;
const COLUMNS: usize = 8;
/// Columns of a register, each with a sum of 32 bits or a group.
const LANES: usize = 4;
const VECTORS: usize = COLUMNS / LANES;
/// Bytes of a register, and of a line of the panel.
const REGISTER_BYTES: usize = 16;
const LINE_BYTES: usize = GROUP_BYTES * BLOCK;

/// An instruction of the first family.
pub(super) trait Dot {
    /// Whether the instruction takes rows with signs for rows without them: they are lowered by 128 as they are
    /// read, and what that takes off the sums of each column is added again.
    const LOWERS: bool = false;

    /// `sums + columns · group LANE of row`.
    ///
    /// # Safety
    /// The machine has the instruction.
    unsafe fn add<const LANE: usize>(sums: int32x4_t, columns: int32x4_t, row: int32x4_t) -> int32x4_t;
}

/// An instruction of the second family.
pub(super) trait Multiply {
    /// `sums + rows · columns`, the sums row by row.
    ///
    /// # Safety
    /// The machine has the instruction.
    unsafe fn add(sums: int32x4_t, rows: int32x4_t, columns: int32x4_t) -> int32x4_t;
}

/// Implements [`Dot`] or [`Multiply`] by one instruction.
macro_rules! instruction {
    (Dot, $name:ident, $extension:literal, $text:literal) => {
        pub(super) struct $name;

        impl Dot for $name {
            #[inline(always)]
            unsafe fn add<const LANE: usize>(mut sums: int32x4_t, columns: int32x4_t, row: int32x4_t) -> int32x4_t {
                // SAFETY: the caller's promise; nothing but registers.
                unsafe {
                    asm!(
                        concat!(".arch_extension ", $extension), $text,
                        sums = inout(vreg) sums, columns = in(vreg) columns, row = in(vreg) row, lane = const LANE,
                        options(pure, nomem, nostack, preserves_flags),
                    );
                }
                sums
            }
        }
    };
    (Multiply, $name:ident, $extension:literal, $text:literal) => {
        pub(super) struct $name;

        impl Multiply for $name {
            #[inline(always)]
            unsafe fn add(mut sums: int32x4_t, rows: int32x4_t, columns: int32x4_t) -> int32x4_t {
                // SAFETY: the caller's promise; nothing but registers.
                unsafe {
                    asm!(
                        concat!(".arch_extension ", $extension), $text,
                        sums = inout(vreg) sums, rows = in(vreg) rows, columns = in(vreg) columns,
                        options(pure, nomem, nostack, preserves_flags),
                    );
                }
                sums
            }
        }
    };
}

instruction!(Dot, Bfdot, "bf16", "bfdot {sums:v}.4s, {columns:v}.8h, {row:v}.2h[{lane}]");
instruction!(Dot, Sdot, "dotprod", "sdot {sums:v}.4s, {columns:v}.16b, {row:v}.4b[{lane}]");
instruction!(Multiply, Bfmmla, "bf16", "bfmmla {sums:v}.4s, {rows:v}.8h, {columns:v}.8h");
instruction!(Multiply, Smmla, "i8mm", "smmla {sums:v}.4s, {rows:v}.16b, {columns:v}.16b");
instruction!(Multiply, Usmmla, "i8mm", "usmmla {sums:v}.4s, {rows:v}.16b, {columns:v}.16b");

/// SDOT for rows without signs.
pub(super) struct SdotOfUnsigned;

impl Dot for SdotOfUnsigned {
    const LOWERS: bool = true;

    #[inline(always)]
    unsafe fn add<const LANE: usize>(sums: int32x4_t, columns: int32x4_t, row: int32x4_t) -> int32x4_t {
        // SAFETY: the caller's promise.
        unsafe { Sdot::add::<LANE>(sums, columns, row) }
    }
}

/// -128 in every byte, which added to a number without a sign makes one with a sign.
const LOWEST: i32 = i32::from_ne_bytes([0x80; 4]);

/// A [`super::strips::Strip`] of dot products.
///
/// # Safety
/// As [`super::strips::Strip`] of the size [`STRIP`], on a machine with the instruction.
pub(super) unsafe fn dots<I: Dot>(
    first: *const u8,
    left: &Left<'_>,
    mut panel: *const u8,
    begin: Begin<u32>,
    to: *mut i32,
) {
    // SAFETY: the caller's promise, for every access below.
    unsafe {
        let mut sums = [[vdupq_n_s32(0); VECTORS]; ROWS];
        // What lowering takes off the sums of each column.
        let mut lowered = [vdupq_n_s32(0); VECTORS];
        for (r, sums) in sums.iter_mut().enumerate() {
            let Some(from) = begin.of_row(r) else { break };
            for (v, sum) in sums.iter_mut().enumerate() {
                *sum = vld1q_s32(from.add(v * LANES).cast());
            }
        }
        for &offset in left.offsets {
            for part in 0..STEP_BYTES / REGISTER_BYTES {
                let mut rows = [vdupq_n_s32(0); ROWS];
                for (r, row) in rows.iter_mut().enumerate() {
                    *row = vld1q_s32(first.add(offset + r * left.pitch + part * REGISTER_BYTES).cast());
                    if I::LOWERS {
                        *row = veorq_s32(*row, vdupq_n_s32(LOWEST));
                    }
                }
                dot::<I, 0>(&mut sums, &mut lowered, &rows, panel);
                dot::<I, 1>(&mut sums, &mut lowered, &rows, panel.add(LINE_BYTES));
                dot::<I, 2>(&mut sums, &mut lowered, &rows, panel.add(2 * LINE_BYTES));
                dot::<I, 3>(&mut sums, &mut lowered, &rows, panel.add(3 * LINE_BYTES));
                panel = panel.add(LANES * LINE_BYTES);
            }
        }
        for (r, sums) in sums.iter().enumerate() {
            for (v, &sum) in sums.iter().enumerate() {
                let sum = if I::LOWERS { vsubq_s32(sum, lowered[v]) } else { sum };
                vst1q_s32(to.add(r * BLOCK + v * LANES), sum);
            }
        }
    }
}

/// Multiplies group `LANE` of every row by a line of the panel.
///
/// # Safety
/// As [`dots`].
#[inline(always)]
unsafe fn dot<I: Dot, const LANE: usize>(
    sums: &mut [[int32x4_t; VECTORS]; ROWS],
    lowered: &mut [int32x4_t; VECTORS],
    rows: &[int32x4_t; ROWS],
    line: *const u8,
) {
    // SAFETY: the caller's promise.
    unsafe {
        for v in 0..VECTORS {
            let columns = vld1q_s32(line.add(v * REGISTER_BYTES).cast());
            for r in 0..ROWS {
                sums[r][v] = I::add::<LANE>(sums[r][v], columns, rows[r]);
            }
            if I::LOWERS {
                lowered[v] = I::add::<LANE>(lowered[v], columns, vdupq_n_s32(LOWEST));
            }
        }
    }
}

/// A [`super::strips::Strip`] of matrix products: registers hold sums of two rows and two columns.
///
/// # Safety
/// As [`super::strips::Strip`] of the size [`STRIP`], on a machine with the instruction.
pub(super) unsafe fn products<I: Multiply>(
    first: *const u8,
    left: &Left<'_>,
    mut panel: *const u8,
    begin: Begin<u32>,
    to: *mut i32,
) {
    // SAFETY: the caller's promise, for every access below.
    unsafe {
        let mut sums = [[vdupq_n_s32(0); 2 * VECTORS]; ROWS / 2];
        for (pair, sums) in sums.iter_mut().enumerate() {
            let (Some(upper), Some(lower)) = (begin.of_row(2 * pair), begin.of_row(2 * pair + 1)) else { break };
            for (v, sums) in sums.chunks_exact_mut(2).enumerate() {
                let [upper, lower] = [upper, lower].map(|row| vld1q_s32(row.add(v * LANES).cast()));
                sums.copy_from_slice(&zip_halves(upper, lower));
            }
        }
        for &offset in left.offsets {
            for part in 0..STEP_BYTES / REGISTER_BYTES {
                let mut rows = [[vdupq_n_s32(0); 2]; ROWS / 2];
                for (pair, halves) in rows.iter_mut().enumerate() {
                    let upper = first.add(offset + 2 * pair * left.pitch + part * REGISTER_BYTES);
                    *halves = zip_halves(vld1q_s32(upper.cast()), vld1q_s32(upper.add(left.pitch).cast()));
                }
                for half in 0..2 {
                    let mut columns = [vdupq_n_s32(0); 2 * VECTORS];
                    for (v, columns) in columns.chunks_exact_mut(2).enumerate() {
                        let line = panel.add(v * REGISTER_BYTES);
                        let (near, far) = (vld1q_s32(line.cast()), vld1q_s32(line.add(LINE_BYTES).cast()));
                        columns.copy_from_slice(&[vzip1q_s32(near, far), vzip2q_s32(near, far)]);
                    }
                    for (sums, rows) in sums.iter_mut().zip(&rows) {
                        for (sum, &columns) in sums.iter_mut().zip(&columns) {
                            *sum = I::add(*sum, rows[half], columns);
                        }
                    }
                    panel = panel.add(2 * LINE_BYTES);
                }
            }
        }
        for (pair, sums) in sums.iter().enumerate() {
            for (v, sums) in sums.chunks_exact(2).enumerate() {
                let [upper, lower] = zip_halves(sums[0], sums[1]);
                let to = to.add(2 * pair * BLOCK + v * LANES);
                vst1q_s32(to, upper);
                vst1q_s32(to.add(BLOCK), lower);
            }
        }
    }
}

/// A block of f16 by widening products. The fewer its rows are the more columns a strip has: with few sums each
/// instruction would wait for the one before (predicted; registers were counted, no time was measured).
///
/// # Safety
/// As [`super::Tiles::block`], on a machine with FEAT_FHM.
pub(super) unsafe fn widening(block: &Block<'_, f16>) {
    // SAFETY: the caller's promise; every height divides the rows of a tile.
    unsafe {
        match block.rows {
            1 => strips::block(halves::<1, 4>, (1, BLOCK), block),
            2 => strips::block(halves::<2, 4>, (2, BLOCK), block),
            3 | 4 => strips::block(halves::<4, 2>, (4, BLOCK / 2), block),
            _ => strips::block(halves::<8, 1>, (8, BLOCK / 4), block),
        }
    }
}

/// A [`super::strips::Strip`] of widening products, of so many rows and pairs of registers: 8 columns, which as rows of
/// f16 are one register each.
///
/// # Safety
/// As [`super::strips::Strip`] of that size, on a machine with FEAT_FHM.
unsafe fn halves<const ROWS: usize, const PAIRS: usize>(
    first: *const u8,
    left: &Left<'_>,
    mut panel: *const u8,
    begin: Begin<u32>,
    to: *mut i32,
) {
    // SAFETY: the caller's promise, for every access below.
    unsafe {
        // Of each pair of registers the sums of the first columns and those of the others.
        let mut sums = [[[vdupq_n_s32(0); 2]; PAIRS]; ROWS];
        for (r, sums) in sums.iter_mut().enumerate() {
            let Some(from) = begin.of_row(r) else { break };
            for (v, sum) in sums.as_flattened_mut().iter_mut().enumerate() {
                *sum = vld1q_s32(from.add(v * LANES).cast());
            }
        }
        for &offset in left.offsets {
            for part in 0..STEP_BYTES / REGISTER_BYTES {
                let mut rows = [vdupq_n_u16(0); ROWS];
                for (r, row) in rows.iter_mut().enumerate() {
                    *row = vld1q_u16(first.add(offset + r * left.pitch + part * REGISTER_BYTES).cast());
                }
                widen::<0, 1, ROWS, PAIRS>(&mut sums, &rows, panel);
                widen::<2, 3, ROWS, PAIRS>(&mut sums, &rows, panel.add(LINE_BYTES));
                widen::<4, 5, ROWS, PAIRS>(&mut sums, &rows, panel.add(2 * LINE_BYTES));
                widen::<6, 7, ROWS, PAIRS>(&mut sums, &rows, panel.add(3 * LINE_BYTES));
                panel = panel.add(LANES * LINE_BYTES);
            }
        }
        for (r, sums) in sums.iter().enumerate() {
            for (v, &sum) in sums.as_flattened().iter().enumerate() {
                vst1q_s32(to.add(r * BLOCK + v * LANES), sum);
            }
        }
    }
}

/// Multiplies numbers `EVEN` and `ODD` of every row, which are a group, by a line of the panel.
///
/// # Safety
/// As [`halves`].
#[inline(always)]
unsafe fn widen<const EVEN: usize, const ODD: usize, const ROWS: usize, const PAIRS: usize>(
    sums: &mut [[[int32x4_t; 2]; PAIRS]; ROWS],
    rows: &[uint16x8_t; ROWS],
    line: *const u8,
) {
    // SAFETY: the caller's promise.
    unsafe {
        for pair in 0..PAIRS {
            let near = vld1q_u16(line.add(pair * 2 * REGISTER_BYTES).cast());
            let far = vld1q_u16(line.add((pair * 2 + 1) * REGISTER_BYTES).cast());
            let (even, odd) = (vuzp1q_u16(near, far), vuzp2q_u16(near, far));
            for r in 0..ROWS {
                fmlal::<EVEN>(&mut sums[r][pair], even, rows[r]);
            }
            for r in 0..ROWS {
                fmlal::<ODD>(&mut sums[r][pair], odd, rows[r]);
            }
        }
    }
}

/// Adds the products of the first four columns and number `INDEX` of a row to the first sums, those of the others to
/// the second (C7.2.119, FMLAL and FMLAL2 by element: the row lies in one of the first 16 registers). Products are
/// exact and are added with one rounding.
///
/// # Safety
/// The machine has FEAT_FHM.
#[inline(always)]
unsafe fn fmlal<const INDEX: usize>(sums: &mut [int32x4_t; 2], columns: uint16x8_t, row: uint16x8_t) {
    let [mut first, mut second] = *sums;
    // SAFETY: the caller's promise; nothing but registers.
    unsafe {
        asm!(
            ".arch_extension fp16fml",
            "fmlal {first:v}.4s, {columns:v}.4h, {row:v}.h[{index}]",
            "fmlal2 {second:v}.4s, {columns:v}.4h, {row:v}.h[{index}]",
            first = inout(vreg) first, second = inout(vreg) second, columns = in(vreg) columns,
            row = in(vreg_low16) row, index = const INDEX,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    *sums = [first, second];
}

/// The first halves of both registers and the second ones.
#[inline(always)]
fn zip_halves(a: int32x4_t, b: int32x4_t) -> [int32x4_t; 2] {
    // SAFETY: NEON, which every arm64 machine has.
    unsafe {
        let (a, b) = (vreinterpretq_s64_s32(a), vreinterpretq_s64_s32(b));
        [vreinterpretq_s32_s64(vzip1q_s64(a, b)), vreinterpretq_s32_s64(vzip2q_s64(a, b))]
    }
}
