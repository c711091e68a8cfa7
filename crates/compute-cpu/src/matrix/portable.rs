//! Blocks by plain loops: what the other kinds must agree with.

use super::{BLOCK, Block, Factor, PANEL_STEP_BYTES, TILE};

/// # Safety
/// As [`super::Tiles::block`].
pub(super) unsafe fn block<F: Factor>(block: &Block<'_, F>) {
    let &Block { ref left, panel, rows, begin, to, .. } = block;
    // SAFETY: the caller's promise.
    let to = unsafe {
        begin.copy(to);
        &mut *to
    };
    for r in 0..rows {
        let row = &mut to.0[r * BLOCK..][..BLOCK];
        for (step, offset) in left.offsets.iter().enumerate() {
            for group in 0..F::STEP / F::GROUP {
                // SAFETY: the caller's promise.
                unsafe {
                    let a = left.tiles[r / TILE].add(offset + r % TILE * left.pitch).cast::<F>();
                    let a = a.add(group * F::GROUP);
                    let line = panel.add(step * PANEL_STEP_BYTES).cast::<F::Right>().add(group * BLOCK * F::GROUP);
                    for (column, sum) in row.iter_mut().enumerate() {
                        for k in 0..F::GROUP {
                            let b = line.add(column * F::GROUP + k).read_unaligned();
                            *sum = F::plus_product(*sum, a.add(k).read_unaligned(), b);
                        }
                    }
                }
            }
        }
    }
}
