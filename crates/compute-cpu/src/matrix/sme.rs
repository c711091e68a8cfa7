//! Blocks on Arm's Scalable Matrix Extension (Arm Architecture Reference Manual, B1.4 and C8): outer products into the
//! array ZA, whose size is up to the chip.
//!
//! A vector holds the groups of `lanes` rows or columns, as many as there are 32-bit numbers in a streaming vector: 4
//! to 64, on Apple's M4 16. ZA has four tiles of `lanes x lanes` sums, and BFMOPA, SMOPA and USMOPA add to a tile the
//! products of every row's group by every column's.
//!
//! ```text
//! transpose the left operand: lines of 32 groups, as the panel has them      NEON
//! for rows from 0, twice the lanes at a time                                 streaming
//!     for columns likewise
//!         for each line
//!             four tiles += two vectors of rows · two vectors of columns
//! ```
//!
//! Predicates cut vectors that reach beyond the block, where a chip's are so long.
//!
//! Stable Rust has neither intrinsics nor functions of streaming mode, and what the compiler makes may use
//! instructions that do not exist there. So a block enters and leaves streaming mode within one piece of assembly.
//! Entering and leaving clear every vector and predicate register, the halves of d8 to d15 that functions have to
//! preserve included; all of them are said to be written. ZA is off outside: nothing here is called by code that
//! uses it.

use super::{BLOCK, Block, Factor, GROUP_BYTES, Left, PANEL_STEP_BYTES, STEP_BYTES, TILE};
use halimede_platform::chip::{Chip, Feature};
use std::arch::aarch64::*;
use std::arch::asm;
use std::mem::MaybeUninit;
use std::sync::OnceLock;

/// Rows that are left to vectors, which multiply no fewer: one strip of them.
pub(super) const FEW_ROWS: usize = super::arm::STRIP.0;
/// Steps whose left operand is transposed at a time: 32 KiB.
const STEPS: usize = 16;
/// Lines of a step: one for each group of it.
const LINES: usize = STEP_BYTES / GROUP_BYTES;
/// Groups of a vector of NEON.
const LANES: usize = 4;

/// Lines of 32 groups.
#[repr(C, align(64))]
struct Lines([[u32; BLOCK]; STEPS * LINES]);

const _: () = assert!(size_of::<Lines>() == STEPS * PANEL_STEP_BYTES);

/// Multiplies so many lines of rows by as many of columns, on top of the sums at the fourth address unless that is
/// null, and writes the sums to the fifth: those of the first rows, which are given as four times their number, 64 or
/// 128.
pub(super) type Multiply = unsafe fn(*const u8, *const u8, usize, *const u8, *mut u8, usize);

/// Whether the processor and the system have it.
pub(super) fn is_available() -> bool {
    static AVAILABLE: OnceLock<bool> = OnceLock::new();
    *AVAILABLE.get_or_init(|| Chip::detect().features.has(Feature::Sme))
}

/// A block by outer products.
///
/// # Safety
/// As [`super::Tiles::block`], on a machine with SME.
pub(super) unsafe fn block<F: Factor>(multiply: Multiply, block: &Block<'_, F>) {
    let &Block { ref left, panel, rows, begin, to, .. } = block;
    let rows = if rows <= TILE { TILE } else { BLOCK };
    let mut lines = MaybeUninit::<Lines>::uninit();
    let lines = lines.as_mut_ptr().cast::<u32>();
    let first = match begin.of_row(0) {
        // Outer products read sums whose rows lie as in a block.
        Some(_) if begin.apart != BLOCK => {
            // SAFETY: the caller's promise.
            unsafe { begin.copy(to) };
            to.cast_const().cast()
        }
        Some(first) => first,
        None => std::ptr::null(),
    };
    for (index, offsets) in left.offsets.chunks(STEPS).enumerate() {
        // SAFETY: the caller's promise, for these steps of the operands.
        unsafe {
            transpose(&Left { offsets, ..*left }, rows, lines);
            let panel = panel.add(index * STEPS * PANEL_STEP_BYTES);
            let so_far = if index == 0 { first.cast() } else { to.cast_const().cast() };
            multiply(lines.cast(), panel, offsets.len() * LINES, so_far, to.cast(), rows * GROUP_BYTES);
        }
    }
}

/// Writes each group of the rows as a line, row by row. Lines of 16 rows are so many groups apart all the same.
///
/// # Safety
/// As [`super::Tiles::block`] for `left`; its steps fit into the [`Lines`] from `to` on.
unsafe fn transpose(left: &Left<'_>, rows: usize, to: *mut u32) {
    for (step, &offset) in left.offsets.iter().enumerate() {
        for (row, part) in (0..rows).step_by(LANES).flat_map(|row| (0..LINES / LANES).map(move |part| (row, part))) {
            // SAFETY: the caller's promise; four groups of four rows, all of one tile; NEON, which every arm64 machine
            // has.
            unsafe {
                let first = left.tiles[row / TILE].add(offset + row % TILE * left.pitch + part * LANES * GROUP_BYTES);
                let at = |r: usize| vld1q_u32(first.add(r * left.pitch).cast());
                let (a, b, c, d) = (at(0), at(1), at(2), at(3));
                let (ac, bd) = ([vzip1q_u32(a, c), vzip2q_u32(a, c)], [vzip1q_u32(b, d), vzip2q_u32(b, d)]);
                let to = to.add((step * LINES + part * LANES) * BLOCK + row);
                for half in 0..2 {
                    vst1q_u32(to.add(2 * half * BLOCK), vzip1q_u32(ac[half], bd[half]));
                    vst1q_u32(to.add((2 * half + 1) * BLOCK), vzip2q_u32(ac[half], bd[half]));
                }
            }
        }
    }
}

/// Defines a [`Multiply`] by an instruction on vectors of such elements.
///
/// | register | holds |
/// |----------|-------|
/// | x0, x1, x2 | lines of rows, lines of columns, their number |
/// | x3, x4, x5 | sums so far or null, where sums go, end of the rows |
/// | x6, x16 | bytes of a vector, its lanes |
/// | x7, x8 | first row and first column of the four tiles, times 4; x9: first row of the lower two |
/// | x17 | end of the columns: 128, also the bytes of a line and of a row of sums |
/// | p0, p1, p2, p3 | which rows and columns of upper and lower, left and right tiles there are |
macro_rules! outer_products {
    ($name:ident, $instruction:literal, $element:literal) => {
        /// # Safety
        /// Lines and sums are valid for so many lines and rows, on a machine with SME.
        pub(super) unsafe fn $name(
            rows: *const u8,
            columns: *const u8,
            lines: usize,
            so_far: *const u8,
            to: *mut u8,
            end: usize,
        ) {
            // SAFETY: the caller's promise; loads and stores are cut to the block by predicates. Streaming mode and ZA
            // are left as they were found, off, and what they clear is said to be written.
            unsafe {
                asm!(
                    ".arch_extension sme",
                    "smstart",
                    "cntb x6",
                    "cntw x16",
                    "mov x17, #128",
                    "mov x7, #0",
                    // Rows of tiles.
                    "2:",
                    "add x9, x7, x6",
                    "whilelo p0.b, x7, x5",
                    "whilelo p1.b, x9, x5",
                    "mov x8, #0",
                    // Columns of tiles.
                    "3:",
                    "add x10, x8, x6",
                    "whilelo p2.b, x8, x17",
                    "whilelo p3.b, x10, x17",
                    "zero {{za}}",
                    "cbz x3, 7f",
                    // Sums so far: a row of the upper tiles, and one of the lower where those have rows.
                    "mov w12, wzr",
                    "mov x11, x7",
                    "add x15, x3, x7, lsl #5",
                    "add x15, x15, x8",
                    "add x10, x15, x6, lsl #5",
                    "4:",
                    "ld1w {{za0h.s[w12, 0]}}, p2/z, [x15]",
                    "ld1w {{za1h.s[w12, 0]}}, p3/z, [x15, x16, lsl #2]",
                    "cmp x9, x5",
                    "b.hs 5f",
                    "ld1w {{za2h.s[w12, 0]}}, p2/z, [x10]",
                    "ld1w {{za3h.s[w12, 0]}}, p3/z, [x10, x16, lsl #2]",
                    "5:",
                    "add x15, x15, x17",
                    "add x10, x10, x17",
                    "add x11, x11, #4",
                    "add w12, w12, #1",
                    "cmp x11, x5",
                    "b.hs 7f",
                    "cmp w12, w16",
                    "b.lo 4b",
                    // Products.
                    "7:",
                    "add x11, x0, x7",
                    "add x13, x1, x8",
                    "mov x14, x2",
                    "8:",
                    "ld1w {{z0.s}}, p0/z, [x11]",
                    "ld1w {{z1.s}}, p1/z, [x11, #1, mul vl]",
                    "ld1w {{z2.s}}, p2/z, [x13]",
                    "ld1w {{z3.s}}, p3/z, [x13, #1, mul vl]",
                    concat!($instruction, " za0.s, p0/m, p2/m, z0.", $element, ", z2.", $element),
                    concat!($instruction, " za1.s, p0/m, p3/m, z0.", $element, ", z3.", $element),
                    concat!($instruction, " za2.s, p1/m, p2/m, z1.", $element, ", z2.", $element),
                    concat!($instruction, " za3.s, p1/m, p3/m, z1.", $element, ", z3.", $element),
                    "add x11, x11, x17",
                    "add x13, x13, x17",
                    "subs x14, x14, #1",
                    "b.ne 8b",
                    // The sums, row by row as above.
                    "mov w12, wzr",
                    "mov x11, x7",
                    "add x15, x4, x7, lsl #5",
                    "add x15, x15, x8",
                    "add x10, x15, x6, lsl #5",
                    "4:",
                    "st1w {{za0h.s[w12, 0]}}, p2, [x15]",
                    "st1w {{za1h.s[w12, 0]}}, p3, [x15, x16, lsl #2]",
                    "cmp x9, x5",
                    "b.hs 5f",
                    "st1w {{za2h.s[w12, 0]}}, p2, [x10]",
                    "st1w {{za3h.s[w12, 0]}}, p3, [x10, x16, lsl #2]",
                    "5:",
                    "add x15, x15, x17",
                    "add x10, x10, x17",
                    "add x11, x11, #4",
                    "add w12, w12, #1",
                    "cmp x11, x5",
                    "b.hs 6f",
                    "cmp w12, w16",
                    "b.lo 4b",
                    "6:",
                    "add x8, x8, x6, lsl #1",
                    "cmp x8, x17",
                    "b.lo 3b",
                    "add x7, x7, x6, lsl #1",
                    "cmp x7, x5",
                    "b.lo 2b",
                    "smstop",
                    in("x0") rows, in("x1") columns, in("x2") lines, in("x3") so_far, in("x4") to, in("x5") end,
                    // x0 to x17, every vector register whole, every predicate register.
                    clobber_abi("C"),
                    options(nostack),
                );
            }
        }
    };
}

outer_products!(bf16, "bfmopa", "h");
outer_products!(i8_by_i8, "smopa", "b");
outer_products!(u8_by_i8, "usmopa", "b");

/// Bits of a streaming vector.
#[cfg(test)]
pub(super) fn vector_bits() -> usize {
    let bytes: usize;
    // SAFETY: on a machine with SME this reads the length, in any mode.
    unsafe {
        asm!(".arch_extension sme", "rdsvl {}, #1", out(reg) bytes, options(pure, nomem, nostack, preserves_flags))
    };
    8 * bytes
}

/// Whether this runs on an emulator that multiplies pairs of rows by pairs of columns as if they were one number each,
/// as QEMU 7.2 does for outer products of integers: it leaves out half of the sums.
#[cfg(test)]
pub(super) fn integers_are_half_emulated() -> bool {
    /// Sums of a row in the longest vector.
    const LANES_MAX: usize = 64;
    let mut row = [0i32; LANES_MAX];
    // SAFETY: on a machine with SME; the first row of a tile fits. Registers as in `outer_products`.
    unsafe {
        asm!(
            ".arch_extension sme",
            "smstart",
            "ptrue p0.b",
            "zero {{za}}",
            // The first row has the numbers 0 to 3, the second 4 to 7; every column has ones.
            "index z0.b, #0, #1",
            "mov z1.b, #1",
            "smopa za0.s, p0/m, p0/m, z0.b, z1.b",
            "mov w12, wzr",
            "st1w {{za0h.s[w12, 0]}}, p0, [x0]",
            "smstop",
            in("x0") row.as_mut_ptr(),
            clobber_abi("C"),
            options(nostack),
        );
    }
    const FIRST: i32 = 1 + 2 + 3;
    const SECOND: i32 = 4 + 5 + 6 + 7;
    row[..2] == [FIRST, SECOND]
}
