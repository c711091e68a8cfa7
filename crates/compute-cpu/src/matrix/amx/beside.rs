//! Steps of a block of tiles, and what ends the rows of the block before between them.

use crate::matrix::{Ahead, Begin, Left, Pending, Runs};

/// What ends rows of sums that are in memory, one after the other.
pub(crate) trait RowByRow: Sized {
    /// Begins with the first row of what is pending; `None` where that is told to another end.
    ///
    /// # Safety
    /// What is pending is valid, and was told to this end where it is told to any of its type.
    unsafe fn begin(pending: &Pending) -> Option<Self>;

    /// Ends so many rows more.
    ///
    /// # Safety
    /// There are, and what was pending is still valid; the machine has AVX-512 with what the end needs of it.
    unsafe fn end_rows(&mut self, rows: usize);

    /// The same of those, of so many that are left, whose sums lie before a place; how many are left then.
    ///
    /// # Safety
    /// As [`RowByRow::end_rows`].
    unsafe fn end_rows_before(&mut self, sums: *const f32, left: usize) -> usize;
}

/// What ends the rows of a block between the steps of another one.
///
/// Sums are there some time behind the last step, and what ends them waits for memory: the steps of the next block, which
/// nothing of that holds up, fill that time (`docs/benchmarks/gaps-m.md`).
///
/// A single step does not fill it. There half a block waits at a time, for the tiles and for memory in turn:
///
/// ```text
/// tiles      upper half of a block       lower half of it            upper half of the next
/// written    lower half of the last one  upper half of the block     lower half of it
/// ended      upper half of the last one  lower half of the last one  upper half of the block
/// ```
pub struct Beside {
    /// By what is streamed.
    pub(super) left: StepsBeside,
    pub(super) panel: StepsBeside,
    pub(super) neither: StepsBeside,
    /// Of a single step.
    pub(super) one: OneStepBeside,
    /// The same of many blocks.
    pub(in crate::matrix) one_in_turns: unsafe fn(&InTurns<'_>),
    /// With no steps at all.
    pub alone: unsafe fn(&Pending),
}

/// What ends rows of a block later, which ones, and what it is told.
#[derive(Clone, Copy)]
pub struct Later {
    pub beside: &'static Beside,
    pub told: *const u8,
    pub runs: Runs,
}

/// Blocks of rows that some panels of one step take turns with: each block of rows with every panel, then the next one.
pub(in crate::matrix) struct InTurns<'a> {
    /// Where the upper rows of the first block are, and bytes to the lower ones and to the next block.
    pub start: *const u8,
    pub lower: usize,
    pub next: usize,
    /// As [`Left::pitch`].
    pub pitch: usize,
    pub blocks: usize,
    pub turns: &'a [Turn],
    pub sums: *mut f32,
}

/// A panel that takes turns: its one step, and how its blocks begin and end.
#[derive(Clone, Copy)]
pub(in crate::matrix) struct Turn {
    pub panel: *const u8,
    pub begin: Begin<u32>,
    pub later: Later,
}

/// A loop over the steps of a block of 32 rows that ends the rows of another one meanwhile.
type StepsBeside = unsafe fn(&Left<'_>, *const u8, &Ahead, &Pending);

/// The single step of a block of 32 rows, on top of what it begins with, that ends the rows of another one meanwhile. The sums of the lower
/// tiles stay there.
type OneStepBeside = unsafe fn(&Left<'_>, *const u8, Begin<u32>, &Ahead, &Pending);

/// Rows that are ended beside each of so many steps, of so many rows.
fn rows_of_a_step(rows: usize, steps: usize) -> usize {
    const LEAST: usize = 2;
    const MOST: usize = 8;
    rows.div_ceil(steps.max(1)).clamp(LEAST, MOST)
}

/// Ends rows with nothing beside.
///
/// # Safety
/// As [`RowByRow`], for what is pending.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma,f16c")]
unsafe fn alone<E: RowByRow>(pending: &Pending) {
    // SAFETY: the caller's promise.
    unsafe {
        let Some(mut ends) = E::begin(pending) else { return debug_assert!(false, "an ending of another kind") };
        ends.end_rows((*pending.ends).runs.rows);
    }
}

/// A loop over the steps of a block as that of `whole`, with ends of rows between them.
macro_rules! beside {
    ($name:ident, $dot:literal, $load:literal, $bring:literal) => {
        /// # Safety
        /// As [`super::super::block`] for 32 rows, tiles configured, at least one step, and as [`RowByRow`] for what is pending.
        #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma,f16c")]
        unsafe fn $name<E: RowByRow>(left: &Left<'_>, mut panel: *const u8, ahead: &Ahead, pending: &Pending) {
            let &Left { tiles: [upper, lower], pitch, offsets, .. } = left;
            let &Ahead { start: mut wanted, lines, apart, each } = ahead;
            // SAFETY: the caller's promise, for every access below.
            unsafe {
                let Some(mut ends) = E::begin(pending) else { return debug_assert!(false, "an ending of another kind") };
                let mut rows = (*pending.ends).runs.rows;
                let rows_each = rows_of_a_step(rows, offsets.len());
                for &offset in offsets {
                    tiles!(
                        concat!($load, " tmm4, [{a} + {pitch}*1]"),
                        concat!($bring, " tmm6, [{panel} + {line}*1]"),
                        concat!($dot, " tmm0, tmm4, tmm6"),
                        concat!($bring, " tmm7, [{panel} + {line}*1 + 64]"),
                        concat!($dot, " tmm1, tmm4, tmm7"),
                        a = in(reg) upper.wrapping_add(offset), pitch = in(reg) pitch,
                        panel = in(reg) panel, line = in(reg) 2 * STEP_BYTES,
                    );
                    let mut line = wanted;
                    for _ in 0..lines {
                        prefetch::to_second_level(line);
                        line = line.wrapping_add(apart);
                    }
                    wanted = wanted.wrapping_add(each);
                    tiles!(
                        concat!($load, " tmm5, [{a} + {pitch}*1]"),
                        concat!($dot, " tmm2, tmm5, tmm6"),
                        concat!($dot, " tmm3, tmm5, tmm7"),
                        a = in(reg) lower.wrapping_add(offset), pitch = in(reg) pitch,
                    );
                    panel = panel.wrapping_add(PANEL_STEP_BYTES);
                    let now = rows.min(rows_each);
                    ends.end_rows(now);
                    rows -= now;
                }
                ends.end_rows(rows);
            }
        }
    };
}

/// Multiplies the upper rows of a step, which begin there, by a panel, which stays in the tiles for the lower ones.
macro_rules! upper_step {
    ($dot:literal, $rows:expr, $pitch:expr, $panel:expr) => {
        tiles!(
            "tileloadd tmm4, [{a} + {pitch}*1]",
            "tileloadd tmm6, [{panel} + {line}*1]",
            concat!($dot, " tmm0, tmm4, tmm6"),
            "tileloadd tmm7, [{panel} + {line}*1 + 64]",
            concat!($dot, " tmm1, tmm4, tmm7"),
            a = in(reg) $rows, pitch = in(reg) $pitch, panel = in(reg) $panel, line = in(reg) 2 * STEP_BYTES,
        )
    };
}

/// Multiplies the lower rows of a step by the panel that [`upper_step`] has brought.
macro_rules! lower_step {
    ($dot:literal, $rows:expr, $pitch:expr) => {
        tiles!(
            "tileloadd tmm5, [{a} + {pitch}*1]",
            concat!($dot, " tmm2, tmm5, tmm6"),
            concat!($dot, " tmm3, tmm5, tmm7"),
            a = in(reg) $rows, pitch = in(reg) $pitch,
        )
    };
}

/// A single step of a block, its upper half and then its lower one, with ends of the rows of another one behind each.
macro_rules! one_beside {
    ($name:ident, $dot:literal) => {
        /// # Safety
        /// As [`super::super::block`] for 32 rows, tiles configured, one step, and as [`RowByRow`] for what is pending, of whose
        /// sums those are in memory that are not said to be in tiles.
        #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma,f16c")]
        unsafe fn $name<E: RowByRow>(
            left: &Left<'_>,
            panel: *const u8,
            begin: Begin<u32>,
            ahead: &Ahead,
            pending: &Pending,
        ) {
            let &Left { tiles: [upper, lower], pitch, offsets, .. } = left;
            let &Ahead { start: mut wanted, lines, apart, .. } = ahead;
            // SAFETY: the caller's promise, for every access below.
            unsafe {
                let Some(mut ends) = E::begin(pending) else {
                    return debug_assert!(false, "an ending of another kind");
                };
                let (sums, rows) = (pending.sums.cast::<u8>(), (*pending.ends).runs.rows);
                let lower_sums = pending.sums.cast_const().add(TILE * BLOCK);
                start_upper(begin);
                upper_step!($dot, upper.wrapping_add(offsets[0]), pitch, panel);
                if pending.are_in_tiles {
                    write_lower(sums);
                }
                for _ in 0..lines {
                    prefetch::to_second_level(wanted);
                    wanted = wanted.wrapping_add(apart);
                }
                let rows = ends.end_rows_before(lower_sums, rows);
                start_lower(begin);
                lower_step!($dot, lower.wrapping_add(offsets[0]), pitch);
                // The rows that were there have been ended.
                write_upper(sums);
                ends.end_rows(rows);
            }
        }
    };
}

/// Blocks in turns, each as the single step of `one`; nothing is asked for ahead.
macro_rules! one_in_turns {
    ($name:ident, $dot:literal) => {
        /// # Safety
        /// As [`super::super::block`] for each block, tiles configured; the sums are nobody else's; and as [`RowByRow`] for what ends each block.
        #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma,f16c")]
        unsafe fn $name<E: RowByRow>(work: &InTurns<'_>) {
            let &InTurns { mut start, lower, next, pitch, blocks, turns, sums } = work;
            // What was multiplied last: its turn, and its first row.
            let mut last: Option<(&Turn, usize)> = None;
            // SAFETY: the caller's promise, for every access below.
            unsafe {
                for row in (0..blocks).map(|block| block * BLOCK) {
                    for turn in turns {
                        let &Turn { panel, begin, .. } = turn;
                        start_upper(begin);
                        upper_step!($dot, start, pitch, panel);
                        let mut ends = None;
                        if let Some((last, row)) = last {
                            write_lower(sums.cast());
                            let pending = Pending { ends: &last.later, sums, are_in_tiles: false, row };
                            ends = E::begin(&pending);
                            debug_assert!(ends.is_some(), "an ending of another kind");
                        }
                        if let Some(ends) = &mut ends {
                            ends.end_rows(TILE);
                        }
                        start_lower(begin);
                        lower_step!($dot, start.wrapping_add(lower), pitch);
                        write_upper(sums.cast());
                        if let Some(ends) = &mut ends {
                            ends.end_rows(BLOCK - TILE);
                        }
                        last = Some((turn, row));
                    }
                    start = start.wrapping_add(next);
                }
                if let Some((last, row)) = last {
                    write_lower(sums.cast());
                    alone::<E>(&Pending { ends: &last.later, sums, are_in_tiles: false, row });
                }
            }
        }
    };
}

/// What ends rows beside products by the instruction `$dot`.
macro_rules! all_beside {
    ($name:ident, $module:ident, $dot:literal) => {
        mod $module {
            use super::super::{start_lower, start_upper, write_lower, write_upper};
            use super::{Beside, InTurns, RowByRow, Turn, alone, rows_of_a_step};
            use crate::matrix::{Ahead, BLOCK, Begin, Left, PANEL_STEP_BYTES, Pending, STEP_BYTES, TILE};
            use crate::prefetch;
            use std::arch::asm;

            beside!(left, $dot, "tileloaddt1", "tileloadd");
            beside!(panel, $dot, "tileloadd", "tileloaddt1");
            beside!(neither, $dot, "tileloadd", "tileloadd");
            one_beside!(one, $dot);
            one_in_turns!(one_in_turns, $dot);

            /// Such loops.
            pub(crate) const fn beside<E: RowByRow>() -> &'static Beside {
                const {
                    &Beside {
                        left: left::<E>,
                        panel: panel::<E>,
                        neither: neither::<E>,
                        one: one::<E>,
                        one_in_turns: one_in_turns::<E>,
                        alone: alone::<E>,
                    }
                }
            }
        }
        pub(crate) use $module::beside as $name;
    };
}

all_beside!(beside_bf16, of_bf16, "tdpbf16ps");
all_beside!(beside_u8, of_u8, "tdpbusd");
