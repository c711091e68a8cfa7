//! Blocks as strips of rows and columns, whose sums fit into the registers of a vector unit.

use super::{BLOCK, Block, Factor, GROUP_BYTES, Left, Meanwhile, TILE};

/// Multiplies rows from the first pointer on by the columns whose groups begin at the second, starting with the
/// sums at the third, where that is not null, and writes those at the fourth. Rows of sums lie [`BLOCK`] apart.
/// Sums in f32 are given by their bits.
pub(super) type Strip = unsafe fn(*const u8, &Left<'_>, *const u8, *const i32, *mut i32);

/// A block by strips of so many rows, of which a tile has a whole number, and so many columns.
///
/// # Safety
/// As [`super::Tiles::block`], on a machine with the strip's instructions.
pub(super) unsafe fn block<F: Factor>(
    strip: Strip,
    (high, wide): (usize, usize),
    block: &Block<'_, F>,
    meanwhile: Meanwhile<'_>,
) {
    let &Block { ref left, panel, rows, so_far, to, .. } = block;
    for row in (0..rows).step_by(high) {
        for column in (0..BLOCK).step_by(wide) {
            let place = row * BLOCK + column;
            // SAFETY: the caller's promise; the rows of a strip lie in one tile, and so do their sums.
            unsafe {
                let first = left.tiles[row / TILE].add(row % TILE * left.pitch);
                let so_far = if so_far.is_null() { std::ptr::null() } else { so_far.cast::<i32>().add(place) };
                strip(first, left, panel.add(column * GROUP_BYTES), so_far, to.cast::<i32>().add(place));
            }
        }
    }
    meanwhile(0, 1);
}
