//! How fast matrix units multiply, measured: what is chosen is what is faster here, not what is newer.

use super::{Ahead, BLOCK, Begin, Block, Factor, Left, MatrixUnit, PANEL_STEP_BYTES, STEP_BYTES, Sums};
use crate::prefetch::LINE;
use crate::rates::Work;
use std::hint::black_box;

/// Steps of a sample's block.
const STEPS: usize = 16;
/// Blocks of a sample: some ten microseconds on the slowest unit.
const BLOCKS: usize = 24;

/// Operations on one thread; a multiplication and an addition count as two.
pub(super) fn work<F: Factor>(matrix: MatrixUnit<F>) -> Work<'static> {
    #[repr(C, align(64))]
    struct Operand([u8; STEPS * PANEL_STEP_BYTES]);
    let mut operand = Box::new(Operand([0; STEPS * PANEL_STEP_BYTES]));
    fill(&mut operand.0);
    let offsets: Vec<usize> = (0..STEPS).map(|step| step % 4 * STEP_BYTES).collect();
    let pitch = 4 * STEP_BYTES;
    let mut sums = Box::new(Sums::default());
    Work::new(BLOCKS * 2 * BLOCK * BLOCK * STEPS * F::STEP, move || {
        let tiles = matrix.enter();
        let start = operand.0.as_ptr();
        for _ in 0..BLOCKS {
            // SAFETY: 32 rows of 256 bytes and 16 steps of a panel lie inside the operand.
            unsafe {
                let left = Left::of_tiles([start, start.add(16 * pitch)], pitch, &offsets);
                let ahead = Ahead { start, lines: 1, apart: 0, each: LINE };
                let block = Block {
                    left,
                    panel: start,
                    columns: BLOCK,
                    rows: BLOCK,
                    begin: Begin::ZERO,
                    to: black_box(&raw mut *sums),
                    ends: None,
                    pending: None,
                    leaves_lower: false,
                    ahead: &ahead,
                };
                tiles.block(&block);
            }
        }
    })
}

/// One row by so many bytes of panels, each read once: what comes from memory is measured as much as what multiplies.
pub(super) fn row<F: Factor>(matrix: MatrixUnit<F>, bytes: usize) -> Work<'static> {
    let panels = bytes / (STEPS * PANEL_STEP_BYTES);
    let mut operand = vec![0u8; panels * STEPS * PANEL_STEP_BYTES];
    fill(&mut operand);
    let offsets: Vec<usize> = (0..STEPS).map(|step| step * STEP_BYTES).collect();
    let mut sums = Box::new(Sums::default());
    Work::new(panels * 2 * BLOCK * STEPS * F::STEP, move || {
        let tiles = matrix.enter();
        let start = operand.as_ptr();
        for panel in operand.chunks_exact(STEPS * PANEL_STEP_BYTES) {
            // SAFETY: 16 rows of 1 KiB lie inside a panel, and so do 16 steps.
            unsafe {
                let left = Left::of_tiles([start, start], STEPS * STEP_BYTES, &offsets);
                let block = Block {
                    left,
                    panel: panel.as_ptr(),
                    columns: BLOCK,
                    rows: 1,
                    begin: Begin::ZERO,
                    to: black_box(&raw mut *sums),
                    ends: None,
                    pending: None,
                    leaves_lower: false,
                    ahead: &Ahead::NOTHING,
                };
                tiles.block(&block);
            }
        }
    })
}

/// Numbers of many different bits. Zeros would say too much: where no bit changes little power is taken, and a Xeon with
/// AMX multiplies them 1.24 times as fast as others.
fn fill(bytes: &mut [u8]) {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    for pair in bytes.as_chunks_mut::<2>().0 {
        // xorshift64 (Marsaglia, 2003).
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        // As bf16 of either sign between a half and two, so that sums stay finite.
        *pair = (0x3f00 | (state as u16 & 0x80ff)).to_le_bytes();
    }
}
