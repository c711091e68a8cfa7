//! Blocks on Intel AMX (Intel 64 and IA-32 Architectures Software Developer's Manual, volume 1,
//! chapter 18).
//!
//! ```text
//!                 B0 = tmm6    B1 = tmm7
//!   A0 = tmm4     C0 = tmm0    C1 = tmm1
//!   A1 = tmm5     C2 = tmm2    C3 = tmm3
//! ```
//!
//! Stable Rust has no intrinsics for tiles: the instructions are written as assembly. The compiler never
//! uses a tile register of its own, so their state lasts from one block to the next. What nobody reads again soon, the
//! left operand or the panel, streams from the second-level cache with a hint not to displace the other one from the first
//! (`tileloaddt1`); measured on Sapphire Rapids that is worth half the speed.

pub(crate) use beside::{Beside, Later, RowByRow, beside_bf16, beside_u8};
pub(super) use beside::{InTurns, Turn};

use super::{Ahead, BLOCK, Begin, Block, Factor, Left, STEP_BYTES, Streamed, TILE};
use halimede_platform::chip::{Chip, Feature, permit_matrix_tiles};
use std::arch::asm;

/// Whether the machine's tiles multiply what the feature says, and the system lets this process use them.
pub(super) fn permitted(products: Feature) -> bool {
    Chip::detect().features.has(products) && permit_matrix_tiles().is_ok()
}

/// Palette 1, `ldtilecfg`'s memory format.
#[repr(C, align(64))]
struct Configuration {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

/// Gives every tile 16 rows of 64 bytes.
///
/// # Safety
/// The machine has AMX and the system permits it.
pub(super) unsafe fn configure() {
    let mut configuration =
        Configuration { palette: 1, start_row: 0, reserved: [0; 14], row_bytes: [0; 16], rows: [0; 16] };
    configuration.row_bytes[..8].fill(STEP_BYTES as u16);
    configuration.rows[..8].fill(TILE as u8);
    // SAFETY: the caller's promise; the configuration is valid for palette 1.
    unsafe { asm!("ldtilecfg [{}]", in(reg) &raw const configuration, options(nostack)) };
}

/// Puts the tiles into their initial state.
///
/// # Safety
/// As [`configure`].
pub(super) unsafe fn release() {
    // SAFETY: the caller's promise.
    unsafe { asm!("tilerelease", options(nostack, nomem)) };
}

/// Bytes of a row of sums, which are of 32 bits.
const SUMS_ROW: usize = BLOCK * size_of::<u32>();

/// Assembly that uses all tiles.
macro_rules! tiles {
    ($($arguments:tt)*) => {
        asm!(
            $($arguments)*
            out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
            out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
            options(nostack),
        )
    };
}

mod beside;

/// Rows of a block that are computed: two tiles' or the upper one's.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Height {
    Whole,
    Half,
}

/// The steps of a block by one of the instructions that multiply tiles.
#[derive(Clone, Copy)]
pub(super) struct Products {
    /// By what is streamed.
    left: Heights,
    panel: Heights,
    neither: Heights,
}

/// Loops for two tiles' rows and one's.
#[derive(Clone, Copy)]
struct Heights {
    whole: Steps,
    half: Steps,
}

/// A loop over the steps of a block.
type Steps = unsafe fn(&Left<'_>, *const u8, &Ahead);

/// bf16 by bf16.
pub(super) const BF16: Products = bf16::PRODUCTS;
/// u8 by i8.
pub(super) const U8: Products = u8::PRODUCTS;
/// i8 by i8.
pub(super) const I8: Products = i8::PRODUCTS;

/// A block.
///
/// # Safety
/// As [`super::Tiles::block`], tiles configured, at least one step.
#[inline(always)]
pub(super) unsafe fn block<F: Factor>(products: Products, block: &Block<'_, F>) {
    let &Block { ref left, panel, rows, begin, to, ahead, pending, leaves_lower, .. } = block;
    let height = if rows > TILE { Height::Whole } else { Height::Half };
    // SAFETY: the caller's promise.
    unsafe {
        if let (Some(pending), true) = (pending, leaves_lower) {
            debug_assert!(height == Height::Whole && left.offsets.len() == 1 && to.cast() == pending.sums);
            return ((*pending.ends).beside.one)(left, panel, begin.bits(), ahead, pending);
        }
        start(height, begin.bits());
        match pending {
            Some(pending) => {
                debug_assert!(height == Height::Whole, "nothing ends beside half a block");
                let beside = (*pending.ends).beside;
                let steps = match left.streamed {
                    Streamed::Left => beside.left,
                    Streamed::Panel => beside.panel,
                    Streamed::Neither => beside.neither,
                };
                steps(left, panel, ahead, pending);
            }
            None => {
                let heights = match left.streamed {
                    Streamed::Left => products.left,
                    Streamed::Panel => products.panel,
                    Streamed::Neither => products.neither,
                };
                let steps = if height == Height::Whole { heights.whole } else { heights.half };
                // The loop asks for one line at least: of what it reads itself, where nothing else is wanted.
                let own = Ahead { start: panel, lines: 1, ..Ahead::NOTHING };
                steps(left, panel, if ahead.lines == 0 { &own } else { ahead });
            }
        }
        end(height, to.cast());
    }
}

/// Starts a block: what it begins with goes to the tiles of C.
///
/// # Safety
/// Tiles are configured; what it begins with can be read for their rows.
#[inline(always)]
unsafe fn start(height: Height, begin: Begin<u32>) {
    // SAFETY: the caller's promise.
    unsafe {
        start_upper(begin);
        if height == Height::Whole {
            start_lower(begin);
        }
    }
}

/// The same of the upper tiles alone.
///
/// # Safety
/// As [`start`].
#[inline(always)]
unsafe fn start_upper(begin: Begin<u32>) {
    let apart = begin.apart * size_of::<u32>();
    // SAFETY: the caller's promise.
    unsafe {
        let Some(upper) = begin.of_row(0) else { return tiles!("tilezero tmm0", "tilezero tmm1",) };
        tiles!(
            "tileloadd tmm0, [{upper} + {apart}*1]",
            "tileloadd tmm1, [{upper} + {apart}*1 + 64]",
            upper = in(reg) upper, apart = in(reg) apart,
        );
    }
}

/// The same of the lower tiles alone.
///
/// # Safety
/// As [`start`].
#[inline(always)]
unsafe fn start_lower(begin: Begin<u32>) {
    let apart = begin.apart * size_of::<u32>();
    // SAFETY: the caller's promise.
    unsafe {
        let Some(lower) = begin.of_row(TILE) else { return tiles!("tilezero tmm2", "tilezero tmm3",) };
        tiles!(
            "tileloadd tmm2, [{lower} + {apart}*1]",
            "tileloadd tmm3, [{lower} + {apart}*1 + 64]",
            lower = in(reg) lower, apart = in(reg) apart,
        );
    }
}

/// Writes the tiles of C.
///
/// # Safety
/// Tiles are configured; the sums can be written.
#[inline(always)]
unsafe fn end(height: Height, sums: *mut u8) {
    // SAFETY: the caller's promise.
    unsafe {
        write_upper(sums);
        if height == Height::Whole {
            write_lower(sums);
        }
    }
}

/// The same of the upper tiles alone.
///
/// # Safety
/// As [`end`].
#[inline(always)]
unsafe fn write_upper(sums: *mut u8) {
    // SAFETY: the caller's promise; the rows of a tile lie inside the sums.
    unsafe {
        tiles!(
            "tilestored [{upper} + {row}*1], tmm0",
            "tilestored [{upper} + {row}*1 + 64], tmm1",
            upper = in(reg) sums, row = in(reg) SUMS_ROW,
        );
    }
}

/// The same of the lower tiles alone.
///
/// # Safety
/// As [`end`].
#[inline(always)]
pub(super) unsafe fn write_lower(sums: *mut u8) {
    // SAFETY: as above.
    unsafe {
        tiles!(
            "tilestored [{lower} + {row}*1], tmm2",
            "tilestored [{lower} + {row}*1 + 64], tmm3",
            lower = in(reg) sums.add(TILE * SUMS_ROW), row = in(reg) SUMS_ROW,
        );
    }
}

/// A loop over steps by the instruction `$dot`, whose left operand `$load` loads and whose panel `$bring`. The upper 16 rows are at `{a}` when
/// `$address` has run; `$lower` multiplies the others, which `$operands` are for. Meanwhile lines of `ahead` come into
/// the second-level cache: a panel that was not read before lies in memory, whose latency the hardware's own
/// prefetching does not hide.
macro_rules! steps {
    ($left:ident, $panel:ident, $ahead:ident, $dot:literal, $load:literal, $bring:literal,
     [$($address:literal),*], [$($lower:tt)*], [$($operands:tt)*]) => {
        tiles!(
            ".p2align 5",
            "2:",
            "mov {offset}, [{offsets}]",
            "add {offsets}, 8",
            $($address,)*
            concat!($load, " tmm4, [{a} + {pitch}*1]"),
            concat!($bring, " tmm6, [{panel} + {line}*1]"),
            concat!($dot, " tmm0, tmm4, tmm6"),
            concat!($bring, " tmm7, [{panel} + {line}*1 + 64]"),
            concat!($dot, " tmm1, tmm4, tmm7"),
            "mov {a}, {ahead}",
            "mov {line_number}, [{wanted} + {lines}]",
            "3:",
            "prefetcht1 [{a}]",
            "add {a}, [{wanted} + {apart}]",
            "dec {line_number}",
            "jnz 3b",
            "add {ahead}, [{wanted} + {each}]",
            $($lower)*
            "add {panel}, 2048",
            "dec {steps}",
            "jnz 2b",
            ahead = inout(reg) $ahead.start => _, wanted = in(reg) std::ptr::from_ref($ahead),
            lines = const offset_of!(Ahead, lines), apart = const offset_of!(Ahead, apart),
            each = const offset_of!(Ahead, each),
            steps = inout(reg) $left.offsets.len() => _,
            offsets = inout(reg) $left.offsets.as_ptr() => _,
            panel = inout(reg) $panel => _,
            offset = out(reg) _, a = out(reg) _, line_number = out(reg) _,
            a0 = in(reg) $left.tiles[0],
            pitch = in(reg) $left.pitch, line = in(reg) 2 * STEP_BYTES,
            $($operands)*
        )
    };
}

/// The loop for all 32 rows.
macro_rules! whole {
    ($name:ident, $dot:literal, $load:literal, $bring:literal) => {
        /// # Safety
        /// As [`super::block`] for 32 rows, tiles configured, at least one step.
        unsafe fn $name(left: &Left<'_>, panel: *const u8, ahead: &Ahead) {
            // SAFETY: the caller's promise.
            unsafe {
                steps!(
                    left, panel, ahead, $dot, $load, $bring,
                    ["lea {a}, [{a0} + {offset}]", "add {offset}, {a1}"],
                    [
                        concat!($load, " tmm5, [{offset} + {pitch}*1]"),
                        concat!($dot, " tmm2, tmm5, tmm6"),
                        concat!($dot, " tmm3, tmm5, tmm7"),
                    ],
                    [a1 = in(reg) left.tiles[1],]
                );
            }
        }
    };
}

/// The loop for the upper 16 rows.
macro_rules! half {
    ($name:ident, $dot:literal, $load:literal, $bring:literal) => {
        /// # Safety
        /// As [`super::block`] for 16 rows, tiles configured, at least one step.
        unsafe fn $name(left: &Left<'_>, panel: *const u8, ahead: &Ahead) {
            // SAFETY: the caller's promise.
            unsafe { steps!(left, panel, ahead, $dot, $load, $bring, ["lea {a}, [{a0} + {offset}]"], [], []) };
        }
    };
}

/// A module with the loops over the steps of a block by the instruction `$dot`.
macro_rules! products {
    ($name:ident, $dot:literal) => {
        mod $name {
            use super::{Heights, Products};
            use crate::matrix::{Ahead, Left, STEP_BYTES};
            use std::arch::asm;
            use std::mem::offset_of;

            pub(super) const PRODUCTS: Products = Products {
                left: Heights { whole: left, half: left_half },
                panel: Heights { whole: panel, half: panel_half },
                neither: Heights { whole: neither, half: neither_half },
            };

            whole!(left, $dot, "tileloaddt1", "tileloadd");
            whole!(panel, $dot, "tileloadd", "tileloaddt1");
            whole!(neither, $dot, "tileloadd", "tileloadd");
            half!(left_half, $dot, "tileloaddt1", "tileloadd");
            half!(panel_half, $dot, "tileloadd", "tileloaddt1");
            half!(neither_half, $dot, "tileloadd", "tileloadd");
        }
    };
}

products!(bf16, "tdpbf16ps");
products!(u8, "tdpbusd");
products!(i8, "tdpbssd");
