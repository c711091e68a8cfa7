//! The matrix unit: products of 16-bit floats with sums in f32, many at an instruction.
//!
//! Every kind of unit computes the same *block*: 32 x 32 sums over steps of 64 bytes of the summed axis,
//! which are [`STEP`] numbers of bf16. The driver in [`multiply`] knows nothing else of a unit.
//!
//! ```text
//!                 step 0      step 1            panel: 32 columns
//!  left    row 0  ████████    ████████  ...       step 0: 16 lines of 128 bytes, each holding
//!          row 1  ████████    ████████                    two rows of B, column by column
//!          ...    (64 bytes)                      step 1: ...
//! ```
//!
//! Intel AMX takes such a block as 2 x 2 tiles, `vdpbf16ps` as rows of registers.

#[cfg(target_arch = "x86_64")]
mod amx;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod multiply;
mod pack;
mod peak;
mod portable;

pub(crate) use multiply::{Rows, multiply, passes, sums_needed};
pub(crate) use pack::{LeftRows, Panels, pack_panel, pack_tiles, panel_len, tiles_len};

use crate::rates;
use std::marker::PhantomData;

/// Rows and columns of a block.
pub(crate) const BLOCK: usize = 32;
/// Rows of one of the two tiles of a block.
pub(crate) const TILE: usize = 16;
/// bf16 numbers of the summed axis that a step multiplies.
pub(crate) const STEP: usize = 32;
/// Bytes of a step in a row of the left operand.
pub(crate) const STEP_BYTES: usize = 64;
/// Bytes of a step in a panel.
pub(crate) const PANEL_STEP_BYTES: usize = BLOCK * STEP_BYTES;

/// A block of sums, row by row.
#[repr(C, align(64))]
#[derive(Clone, Copy)]
pub(crate) struct Sums(pub [f32; BLOCK * BLOCK]);

/// Something that multiplies blocks of bf16. Having one proves that the machine has its instructions
/// and that the system lets this process use them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Matrix(Kind);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Plain loops: the definition that the others are tested against.
    Portable,
    #[cfg(target_arch = "x86_64")]
    Avx512Bf16,
    #[cfg(target_arch = "x86_64")]
    Amx,
}

/// The left operand of a block: step `s` of row `r` is the [`STEP_BYTES`] bytes at
/// `tiles[r / 16] + offsets[s] + (r % 16)·pitch`.
#[derive(Clone, Copy)]
pub(crate) struct Left<'a> {
    pub tiles: [*const u8; 2],
    pub pitch: usize,
    pub offsets: &'a [usize],
}

/// Memory that is wanted soon: `lines` cache lines from `start` on for each step of a block. It need not be
/// readable.
#[cfg_attr(not(target_arch = "x86_64"), expect(dead_code, reason = "portable blocks leave it to the hardware"))]
#[derive(Clone, Copy)]
pub(crate) struct Ahead {
    pub start: *const u8,
    pub lines: usize,
}

impl Matrix {
    /// Plain loops, on every machine: slower than f32, but what the other kinds are tested against.
    pub const PORTABLE: Matrix = Matrix(Kind::Portable);

    /// Every kind of this machine that may be faster than f32.
    pub fn available() -> Vec<Matrix> {
        #[allow(unused_mut, reason = "arm64 has none so far")]
        let mut kinds = Vec::new();
        #[cfg(target_arch = "x86_64")]
        {
            if is_x86_feature_detected!("avx512bf16") && is_x86_feature_detected!("avx512bw") {
                kinds.push(Matrix(Kind::Avx512Bf16));
            }
            use halimede_platform::chip::{Chip, Feature, permit_matrix_tiles};
            if Chip::detect().features.has(Feature::AmxBf16) && permit_matrix_tiles().is_ok() {
                kinds.push(Matrix(Kind::Amx));
            }
        }
        kinds
    }

    /// The fastest kind, where that is faster than f32 on this machine, by a measurement of some
    /// hundred microseconds.
    pub fn fastest() -> Option<Matrix> {
        let rated = Matrix::available().into_iter().map(|matrix| (matrix, matrix.peak()));
        let (matrix, rate) = rated.max_by(|a, b| a.1.total_cmp(&b.1))?;
        (rate > rates::f32_operations()).then_some(matrix)
    }

    /// The name in listings.
    pub fn name(self) -> &'static str {
        match self.0 {
            Kind::Portable => "portable-bf16",
            #[cfg(target_arch = "x86_64")]
            Kind::Avx512Bf16 => "avx512-bf16",
            #[cfg(target_arch = "x86_64")]
            Kind::Amx => "amx-bf16",
        }
    }

    /// Multiplications and additions of bf16 a second on one thread, operands in the first-level cache,
    /// as measured now.
    pub fn peak(self) -> f64 {
        peak::bf16_peak(self)
    }

    /// Prepares the calling thread for [`Tiles::block`].
    pub(crate) fn enter(self) -> Tiles {
        #[cfg(target_arch = "x86_64")]
        if self.0 == Kind::Amx {
            // SAFETY: a value of this kind exists only where the tiles do and may be used.
            unsafe { amx::configure() };
        }
        Tiles { matrix: self, thread_bound: PhantomData }
    }
}

/// The unit in the state that the calling thread has set up for it; left when dropped.
pub(crate) struct Tiles {
    matrix: Matrix,
    /// The state belongs to the thread.
    thread_bound: PhantomData<*const ()>,
}

/// A block to compute: `to = so_far + left · panel`, `so_far` being nothing where it is null.
pub(crate) struct Block<'a> {
    pub left: Left<'a>,
    pub panel: *const u8,
    /// 16 rows or fewer compute one tile's, more than that both's.
    pub rows: usize,
    pub so_far: *const Sums,
    /// May be `so_far`. What it holds beyond the rows afterwards is not said.
    pub to: *mut Sums,
    pub ahead: Ahead,
}

impl Tiles {
    /// Computes a block, and between its steps calls `meanwhile` for each part of other work, numbered and with
    /// the count of parts: a matrix unit of its own multiplies while the core's other units do that.
    ///
    /// # Safety
    /// Both tiles of `left` (with at most 16 rows: the first) can be read for 16 rows and every step, and
    /// `panel` for [`PANEL_STEP_BYTES`] bytes a step; `so_far`, where it is not null, can be read and `to`
    /// written.
    #[inline]
    pub unsafe fn block(&self, block: Block<'_>, meanwhile: &mut dyn FnMut(usize, usize)) {
        let Block { left, panel, rows, so_far, to, ahead } = block;
        // SAFETY: the caller's promise; the kind proves that the instructions exist, `enter` has set up their
        // state.
        unsafe {
            if left.offsets.is_empty() {
                *to = if so_far.is_null() { Sums([0.0; BLOCK * BLOCK]) } else { *so_far };
            } else {
                match self.matrix.0 {
                    Kind::Portable => portable::block(left, panel, so_far, to, rows),
                    #[cfg(target_arch = "x86_64")]
                    Kind::Avx512Bf16 => avx512::block(left, panel, so_far, to, rows),
                    #[cfg(target_arch = "x86_64")]
                    Kind::Amx => return amx::block(left, panel, so_far, to, rows, ahead, meanwhile),
                }
            }
        }
        // The hardware's prefetching keeps up with these, and they leave nothing idle.
        let _ = ahead;
        meanwhile(0, 1);
    }
}

impl Drop for Tiles {
    fn drop(&mut self) {
        #[cfg(target_arch = "x86_64")]
        if self.matrix.0 == Kind::Amx {
            // SAFETY: as in `Matrix::enter`. Released tiles cost nothing when threads change.
            unsafe { amx::release() };
        }
    }
}

#[cfg(test)]
mod tests;
