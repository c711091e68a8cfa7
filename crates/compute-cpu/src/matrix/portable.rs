//! Blocks by plain loops: what the other kinds must agree with.

use super::{BLOCK, Left, PANEL_STEP_BYTES, STEP, Sums, TILE};
use half::bf16;

/// # Safety
/// As [`super::Tiles::block`].
pub(super) unsafe fn block(left: Left<'_>, panel: *const u8, so_far: *const Sums, to: *mut Sums, rows: usize) {
    // SAFETY: the caller's promise.
    let to = unsafe {
        *to = if so_far.is_null() { Sums([0.0; BLOCK * BLOCK]) } else { *so_far };
        &mut *to
    };
    for r in 0..rows {
        let row = &mut to.0[r * BLOCK..][..BLOCK];
        for (step, offset) in left.offsets.iter().enumerate() {
            for k in 0..STEP {
                // SAFETY: the caller's promise.
                unsafe {
                    let a = left.tiles[r / TILE].add(offset + r % TILE * left.pitch).cast::<bf16>().add(k);
                    let a = a.read_unaligned().to_f32();
                    let line = panel.add(step * PANEL_STEP_BYTES).cast::<bf16>().add(k / 2 * 2 * BLOCK + k % 2);
                    for (column, sum) in row.iter_mut().enumerate() {
                        *sum += a * line.add(2 * column).read_unaligned().to_f32();
                    }
                }
            }
        }
    }
}
