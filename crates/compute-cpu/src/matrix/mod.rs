//! The matrix unit: products of 16-bit floats (bf16, f16) with sums in f32, or of 8-bit integers with sums in i32, many at
//! an instruction.
//!
//! Every kind of unit computes the same *block*: 32 x 32 sums over steps of 64 bytes of the summed axis,
//! which are 32 floats or 64 integers. The driver in [`multiply`] knows nothing else of a unit, and
//! what numbers there are is said in [`factor`] alone.
//!
//! ```text
//!                 step 0      step 1            panel: 32 columns
//!  left    row 0  ████████    ████████  ...       step 0: 16 lines of 128 bytes, each holding a group of
//!          row 1  ████████    ████████                    rows of B (2 of 16 bits, 4 of 8), column by column
//!          ...    (64 bytes)                      step 1: ...
//! ```
//!
//! Intel AMX takes such a block as 2 x 2 tiles, Arm's SME as outer products of lines, `vdpbf16ps`, `vpdpbusd`,
//! `vpmaddwd` and the vector instructions of Arm as rows of registers.

#[cfg(target_arch = "x86_64")]
mod amx;
#[cfg(target_arch = "aarch64")]
mod arm;
#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod factor;
mod multiply;
mod pack;
mod peak;
mod portable;
#[cfg(target_arch = "aarch64")]
mod sme;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod strips;

#[cfg(target_arch = "x86_64")]
pub(crate) use amx::{Beside, Later, RowByRow, beside_bf16, beside_u8};
#[cfg(target_arch = "x86_64")]
pub(crate) use avx512::{
    End, Ends, Halves, Strips, bf16_halves, bf16_strips, bf16_three_quarters, u8_halves_to_bf16, u8_strips,
    u8_strips_to_bf16,
};
pub(crate) use factor::{Factor, GROUP_BYTES, group, step};
pub(crate) use multiply::{
    Below, FEW_BLOCKS, Outer, PASS_STEPS, Rows, STRIP, Seen, Sink, TURNS, block_rows, depths, keeps_sums, multiply,
    order, sums_needed,
};
pub(crate) use pack::{LeftRows, Panels, keep, kept_bytes, pack_panel, pack_tiles, panel_len, tiles_len};
#[cfg(all(target_arch = "x86_64", test))]
pub(crate) use strips::{Many, Share};

use crate::{
    Blas,
    rates::{self, Work},
};
use half::{bf16, f16};
use std::marker::PhantomData;

/// Rows and columns of a block.
pub(crate) const BLOCK: usize = 32;
/// Rows of one of the two tiles of a block.
pub(crate) const TILE: usize = 16;
/// Bytes of a step in a row of the left operand.
pub(crate) const STEP_BYTES: usize = 64;
/// Bytes of a step in a panel.
pub(crate) const PANEL_STEP_BYTES: usize = BLOCK * STEP_BYTES;

/// A block of sums, row by row.
#[repr(C, align(64))]
#[derive(Clone, Copy)]
pub struct Sums<S = f32>(pub [S; BLOCK * BLOCK]);

impl<S: Copy + Default> Default for Sums<S> {
    fn default() -> Sums<S> {
        Sums([S::default(); BLOCK * BLOCK])
    }
}

/// No unit here ends rows in registers.
#[cfg(not(target_arch = "x86_64"))]
pub enum Ends {}

/// Rows of the block before, whose sums are there, [`BLOCK`] apart, and are ended beside the steps of the next one.
#[cfg(target_arch = "x86_64")]
pub struct Pending {
    pub ends: *const Later,
    pub sums: *mut f32,
    /// The sums of the lower tiles' rows are still in these, and only those of the others in memory.
    pub are_in_tiles: bool,
    /// Of those that their end was told of, the first that is meant.
    pub row: usize,
}

/// No unit here ends rows beside steps.
#[cfg(not(target_arch = "x86_64"))]
pub enum Pending {}

/// No unit here ends rows beside steps.
#[cfg(not(target_arch = "x86_64"))]
pub enum Later {}

/// Rows of a block that are ended, in runs that follow each other at some distance, as the pixels of lines of an image do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Runs {
    /// How many there are.
    pub rows: usize,
    /// Rows of the block before the first of them.
    pub before: usize,
    /// Rows of the first run, and of each that follows.
    pub first: usize,
    pub each: usize,
    /// Rows of the block between two runs, and how many numbers farther the second one lies than the next row of the first would, or nearer.
    pub skipped: usize,
    pub farther: isize,
}

impl Runs {
    /// All of so many rows.
    pub const fn one(rows: usize) -> Runs {
        Runs { rows, before: 0, first: usize::MAX, each: usize::MAX, skipped: 0, farther: 0 }
    }

    /// Numbers from the first row to the last, where rows lie so many apart.
    #[cfg(target_arch = "x86_64")]
    #[inline]
    pub fn extent(&self, apart: usize) -> usize {
        // Most are one run, and need no division.
        let breaks = if self.rows <= self.first { 0 } else { (self.rows - self.first).div_ceil(self.each) };
        (self.rows.saturating_sub(1) * apart).wrapping_add_signed(breaks as isize * self.farther)
    }
}

/// Something that multiplies blocks of numbers. Having one proves that the machine has its instructions
/// and that the system lets this process use them.
#[derive(Debug, PartialEq, Eq)]
pub struct MatrixUnit<F: Factor>(Kind, PhantomData<F>);

/// A unit that multiplies bf16.
pub type Matrix = MatrixUnit<bf16>;
/// A unit that multiplies f16.
pub type HalfMatrix = MatrixUnit<f16>;
/// A unit that multiplies 8-bit integers.
pub type IntegerMatrix = MatrixUnit<u8>;

impl<F: Factor> Clone for MatrixUnit<F> {
    fn clone(&self) -> MatrixUnit<F> {
        *self
    }
}

impl<F: Factor> Copy for MatrixUnit<F> {}

/// Kinds of units.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Plain loops: the definition that the others are tested against.
    Portable,
    /// Products of 16 bits, for integers alone.
    #[cfg(target_arch = "x86_64")]
    Avx2,
    /// Groups of bytes in vectors of AVX2, for integers alone.
    #[cfg(target_arch = "x86_64")]
    AvxVnni,
    /// Instructions of AVX-512 that multiply groups: BF16, VNNI.
    #[cfg(target_arch = "x86_64")]
    Avx512,
    /// Tiles.
    #[cfg(target_arch = "x86_64")]
    Amx,
    /// Dot products: SDOT, BFDOT.
    #[cfg(target_arch = "aarch64")]
    Dot,
    /// Products that are added to wider sums, for f16 alone: FMLAL and FMLAL2.
    #[cfg(target_arch = "aarch64")]
    Widening,
    /// Products of two rows and two columns: SMMLA, USMMLA, BFMMLA.
    #[cfg(target_arch = "aarch64")]
    Mmla,
    /// Outer products: SMOPA, USMOPA, BFMOPA.
    #[cfg(target_arch = "aarch64")]
    Sme,
}

/// The left operand of a block: step `s` of row `r` is the [`STEP_BYTES`] bytes at
/// `tiles[r / 16] + offsets[s] + (r % 16)·pitch`, or where [`Lines`] say for units that take rows in lines.
#[derive(Clone, Copy)]
pub struct Left<'a> {
    pub tiles: [*const u8; 2],
    pub pitch: usize,
    pub offsets: &'a [usize],
    /// Groups of each step that are not zeros throughout; none where all of them count. Units may multiply the others, too.
    pub depths: &'a [u8],
    pub lines: Lines,
    pub streamed: Streamed,
}

/// Which operand of a block nobody reads again soon, so that it need not displace anything in the first-level cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Streamed {
    Left,
    Panel,
    Neither,
}

impl<'a> Left<'a> {
    /// Of whole steps and tiles.
    pub fn of_tiles(tiles: [*const u8; 2], pitch: usize, offsets: &'a [usize]) -> Left<'a> {
        let lines = Lines { first: 0, rows: TILE, apart: (tiles[1] as usize).wrapping_sub(tiles[0] as usize) };
        Left { tiles, pitch, offsets, depths: &[], lines, streamed: Streamed::Left }
    }
}

/// Lines of rows: the rows of one lie at one distance, those of the next somewhere else. The first row of a block lies at
/// the first tile's address.
#[derive(Clone, Copy)]
pub struct Lines {
    /// The place of the block's first row in its line.
    pub first: usize,
    /// Rows of a line.
    pub rows: usize,
    /// Bytes from the start of a line to that of the next.
    pub apart: usize,
}

/// Memory that is wanted soon, as `lines` streams whose starts lie `apart` bytes from each other: a step of a block
/// asks for a cache line of each, the next one `each` bytes later. It need not be readable.
///
/// One stream alone is slow. What fetches ahead by itself, beside the second-level cache, follows each page of
/// memory for itself and only so far; with tiles loaded in between it falls behind.
// In this order for assembly.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Ahead {
    pub start: *const u8,
    pub lines: usize,
    pub apart: usize,
    pub each: usize,
}

impl Ahead {
    /// Nothing.
    pub const NOTHING: Ahead = Ahead { start: std::ptr::null(), lines: 0, apart: 0, each: 0 };
}

impl Kind {
    fn has_tiles(self) -> bool {
        #[cfg(target_arch = "x86_64")]
        return self == Kind::Amx;
        #[cfg(target_arch = "aarch64")]
        return self == Kind::Sme;
        #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
        false
    }

    fn takes_lines(self) -> bool {
        #[cfg(target_arch = "x86_64")]
        return matches!(self, Kind::Avx2 | Kind::AvxVnni | Kind::Avx512);
        #[cfg(not(target_arch = "x86_64"))]
        false
    }

    /// Whether there are instructions for a left operand with signs.
    fn multiplies_signed(self) -> bool {
        #[cfg(target_arch = "x86_64")]
        return matches!(self, Kind::Portable | Kind::Amx);
        #[cfg(not(target_arch = "x86_64"))]
        true
    }
}

impl<F: Factor> MatrixUnit<F> {
    /// Plain loops, on every machine: slower than f32, but what the other kinds are tested against.
    pub const PORTABLE: MatrixUnit<F> = MatrixUnit(Kind::Portable, PhantomData);

    /// Every kind of this machine that may be faster than f32.
    pub fn available() -> Vec<MatrixUnit<F>> {
        F::kinds().into_iter().map(|kind| MatrixUnit(kind, PhantomData)).collect()
    }

    /// The fastest kind, where that is worth rounding for on this machine, by a measurement of some
    /// hundred microseconds; of ten milliseconds where they are close.
    pub fn fastest() -> Option<MatrixUnit<F>> {
        /// Times as fast as f32: values have to be rounded before, and the choice is to be the same at the next start.
        const WORTH_ROUNDING: f64 = 1.25;
        let units = MatrixUnit::available();
        let f32_work = Blas::fastest().map_or_else(rates::f32_work, Blas::work).times(WORTH_ROUNDING);
        let mut rates = rates::in_turns(units.iter().map(|unit| unit.work()).chain([f32_work]));
        let f32_rate = rates.pop()?;
        let (matrix, rate) = MatrixUnit::fastest_of(units, rates)?;
        (rate > f32_rate).then_some(matrix)
    }

    /// The fastest of units with those rates, and its own.
    fn fastest_of(units: Vec<MatrixUnit<F>>, rates: Vec<f64>) -> Option<(MatrixUnit<F>, f64)> {
        units.into_iter().zip(rates).max_by(|a, b| a.1.total_cmp(&b.1))
    }

    /// The name in listings.
    pub fn name(self) -> &'static str {
        F::name(self.0)
    }

    /// Multiplications and additions a second on one thread, operands in the first-level cache, as measured
    /// now.
    pub fn peak(self) -> f64 {
        self.work().rate()
    }

    /// What [`MatrixUnit::peak`] measures.
    pub(crate) fn work(self) -> Work<'static> {
        peak::work(self)
    }

    /// One row by so many bytes of weights: multiplications and additions.
    pub(crate) fn row_work(self, bytes: usize) -> Work<'static> {
        peak::row(self, bytes)
    }

    /// Whether it was measured to read and write blocked values faster (`docs/benchmarks/layouts.md`).
    pub(crate) fn gains_by_blocks(self) -> bool {
        self.is_amx()
    }

    /// Whether it is Intel's, whose machines have at least 2 MiB of second-level cache for each core.
    pub(crate) fn is_amx(self) -> bool {
        #[cfg(target_arch = "x86_64")]
        return self.0 == Kind::Amx;
        #[cfg(not(target_arch = "x86_64"))]
        false
    }

    /// Whether rows may lie in lines of any length, and are computed and read one by one, rather than as whole tiles.
    pub(crate) fn takes_lines(self) -> bool {
        self.0.takes_lines()
    }

    /// Whether what so many rows are multiplied by comes by itself as fast as they need it.
    fn few_rows_come(self, rows: usize) -> bool {
        #[cfg(target_arch = "x86_64")]
        return self.0 == Kind::Avx512 && rows <= avx512::FEW_ROWS && crate::prefetch::follows_pages();
        #[cfg(not(target_arch = "x86_64"))]
        {
            let _ = rows;
            false
        }
    }

    /// Whether it ends so many rows in registers, where that is told.
    pub(crate) fn ends_rows(self, rows: usize) -> bool {
        #[cfg(target_arch = "x86_64")]
        return self.0 == Kind::Avx512 && rows > avx512::FEW_ROWS;
        #[cfg(not(target_arch = "x86_64"))]
        {
            let _ = rows;
            false
        }
    }

    /// Whether it ends the rows of the block before beside the steps of a block of so many rows, where that is told.
    fn ends_beside(self, rows: usize) -> bool {
        self.is_amx() && rows > TILE
    }

    /// Prepares the calling thread for [`Tiles::block`].
    pub(crate) fn enter(self) -> Tiles<F> {
        #[cfg(target_arch = "x86_64")]
        if self.0 == Kind::Amx {
            // SAFETY: a value of this kind exists only where the tiles do and may be used.
            unsafe { amx::configure() };
        }
        Tiles { matrix: self, thread_bound: PhantomData }
    }
}

impl Matrix {
    /// Whether convolutions by Winograd's algorithm take less time on it than all of their products: measured on Zen 5's vectors,
    /// where they do, and on Intel's tiles, where they do not (`docs/benchmarks/winograd.md`).
    pub(crate) fn gains_by_winograd(self) -> bool {
        #[cfg(target_arch = "x86_64")]
        return self.0 == Kind::Avx512;
        #[cfg(not(target_arch = "x86_64"))]
        false
    }
}

impl IntegerMatrix {
    /// The fastest kind, or without `tiles` the fastest of vector instructions: integers have to be multiplied
    /// as integers, fast or not.
    pub fn choose(tiles: bool) -> IntegerMatrix {
        let mut units = MatrixUnit::available();
        units.retain(|unit| tiles || !unit.0.has_tiles());
        let rates = rates::in_turns(units.iter().map(|unit| unit.work()));
        MatrixUnit::fastest_of(units, rates).map_or(MatrixUnit::PORTABLE, |(unit, _)| unit)
    }

    /// Whether it multiplies tiles, in a state of its own, rather than vectors.
    pub(crate) fn has_tiles(self) -> bool {
        self.0.has_tiles()
    }

    /// Whether it multiplies numbers of 16 bits, which bytes have to become before.
    pub(crate) fn widens(self) -> bool {
        #[cfg(target_arch = "x86_64")]
        return self.0 == Kind::Avx2;
        #[cfg(not(target_arch = "x86_64"))]
        false
    }

    /// The same for a left operand with signs, where the kind has instructions for that.
    pub(crate) fn signed(self) -> Option<MatrixUnit<i8>> {
        self.0.multiplies_signed().then_some(MatrixUnit(self.0, PhantomData))
    }
}

/// The unit in the state that the calling thread has set up for it; left when dropped.
pub(crate) struct Tiles<F: Factor> {
    matrix: MatrixUnit<F>,
    /// The state belongs to the thread.
    thread_bound: PhantomData<*const ()>,
}

/// What the sums of a block begin with.
#[derive(Clone, Copy)]
pub struct Begin<S> {
    /// Null where it is zero.
    start: *const S,
    /// Numbers from one row to the next: none where all rows begin alike.
    apart: usize,
}

impl<S> Begin<S> {
    pub const ZERO: Begin<S> = Begin { start: std::ptr::null(), apart: 0 };

    /// Other sums, or zero where they are null.
    pub fn sums(sums: *const Sums<S>) -> Begin<S> {
        Begin { start: sums.cast(), apart: BLOCK }
    }

    /// The [`BLOCK`] numbers of one row in each row, or zero where they are null.
    pub fn row(row: *const S) -> Begin<S> {
        Begin { start: row, apart: 0 }
    }

    /// Writes it.
    ///
    /// # Safety
    /// It can be read for every row, or is `to`, and that be written.
    unsafe fn copy(self, to: *mut Sums<S>)
    where
        S: Copy + Default,
    {
        // SAFETY: the caller's promise.
        unsafe {
            match (self.start.is_null(), self.apart) {
                (true, _) => *to = Sums::default(),
                (false, BLOCK) => std::ptr::copy(self.start, to.cast(), BLOCK * BLOCK),
                (false, apart) => {
                    for row in 0..BLOCK {
                        std::ptr::copy(self.start.add(row * apart), to.cast::<S>().add(row * BLOCK), BLOCK);
                    }
                }
            }
        }
    }

    /// The same by bits.
    fn bits(self) -> Begin<u32> {
        const { assert!(size_of::<S>() == size_of::<u32>()) }
        Begin { start: self.start.cast(), apart: self.apart }
    }

    /// The same from a row and a column on.
    #[cfg(target_arch = "aarch64")]
    fn at(self, row: usize, column: usize) -> Begin<S> {
        let apart = self.apart;
        let start = self.of_row(row).map_or(std::ptr::null(), |start| start.wrapping_add(column));
        Begin { start, apart }
    }

    /// Where that of a row is; `None` where it is zero.
    #[inline(always)]
    fn of_row(self, row: usize) -> Option<*const S> {
        (!self.start.is_null()).then(|| self.start.wrapping_add(row * self.apart))
    }
}

/// A block to compute: `to = begin + left · panel`.
///
/// Units take it by reference and read it number by number: a copy is made 16 bytes at a time of what was just written 8
/// at a time, and that waits until everything before has retired, the sums of the last strip among it.
pub struct Block<'a, F: Factor> {
    pub left: Left<'a>,
    pub panel: *const u8,
    /// Columns of the panel that count, from the first on. What the sums of the others are is not said.
    pub columns: usize,
    /// 16 rows or fewer compute one tile's, more than that both's. More than [`BLOCK`] only where what ends them is told, so that
    /// there are no sums of them, and all begin alike.
    pub rows: usize,
    pub begin: Begin<F::Sum>,
    /// May be what the sums begin with, or what is pending: both are read before it is written. What it holds beyond the rows
    /// afterwards is not said.
    pub to: *mut Sums<F::Sum>,
    /// What ends the rows instead of writing sums, for units and blocks that [`MatrixUnit::ends_rows`].
    pub ends: Option<&'a Ends>,
    /// What is ended beside the steps, for units and blocks that [`MatrixUnit::ends_beside`].
    pub pending: Option<&'a Pending>,
    /// With something pending, whose sums are in `to`, and a single step: leaves the lower tiles' sums where they are
    /// ([`Tiles::write_lower`]), and writes the others where those were that have been ended by then.
    pub leaves_lower: bool,
    pub ahead: &'a Ahead,
}

impl<F: Factor> Tiles<F> {
    /// Computes a block.
    ///
    /// # Safety
    /// Both tiles of `left` (with at most 16 rows: the first) can be read for 16 rows and every step, or the rows in its
    /// lines where the unit takes lines, and `panel` for [`PANEL_STEP_BYTES`] bytes a step; what the sums begin with can
    /// be read for whole tiles and `to` written; what ends rows may do so.
    #[inline(always)]
    pub unsafe fn block(&self, block: &Block<'_, F>) {
        // SAFETY: the caller's promise; the kind proves that the instructions exist, `enter` has set up their
        // state.
        unsafe {
            debug_assert!(
                block.rows <= BLOCK || block.ends.is_some() && block.begin.apart == 0,
                "sums of too many rows"
            );
            if block.left.offsets.is_empty() {
                block.begin.copy(block.to);
            } else {
                F::block(self.matrix.0, block);
            }
        }
    }

    /// Writes the sums that the last block has left in the lower tiles.
    ///
    /// # Safety
    /// It has, and they can be written.
    pub unsafe fn write_lower(&self, to: *mut Sums<F::Sum>) {
        #[cfg(target_arch = "x86_64")]
        if self.matrix.is_amx() {
            // SAFETY: the caller's promise; tiles are configured while this exists.
            unsafe { amx::write_lower(to.cast()) };
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = to;
    }
}

impl<F: Factor> Drop for Tiles<F> {
    fn drop(&mut self) {
        #[cfg(target_arch = "x86_64")]
        if self.matrix.0 == Kind::Amx {
            // SAFETY: as in `MatrixUnit::enter`. Released tiles cost nothing when threads change.
            unsafe { amx::release() };
        }
    }
}

#[cfg(test)]
mod tests;
