//! Blocks as strips of rows and columns, whose sums fit into the registers of a vector unit.

#[cfg(target_arch = "x86_64")]
use super::{Ahead, BLOCK, Left, Lines};
#[cfg(target_arch = "aarch64")]
use super::{BLOCK, Begin, Block, Factor, GROUP_BYTES, Left, TILE};

/// Rows of each strip of a run of so many rows, as even as can be and at most so many.
#[cfg(target_arch = "x86_64")]
pub(super) const fn heights(most: usize) -> [u8; BLOCK + 1] {
    let mut heights = [1; BLOCK + 1];
    let mut run = 1;
    while run <= BLOCK {
        heights[run] = run.div_ceil(run.div_ceil(most)) as u8;
        run += 1;
    }
    heights
}

/// Calls `strip` for the rows of a block, strip by strip: with the number of its rows, the address of the first, the place of
/// that in the block, and what it asks for meanwhile. No strip crosses the end of a line. `heights` are [`heights`] of `most`.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(super) fn by_lines(
    left: &Left<'_>,
    rows: usize,
    (heights, most): (&[u8; BLOCK + 1], usize),
    ahead: &Ahead,
    mut strip: impl FnMut(usize, *const u8, usize, &Ahead),
) {
    let Lines { first, rows: line, apart } = left.lines;
    let (mut wanted, mut lines_left) = (ahead.start, ahead.lines);
    let (mut row, mut start, mut place) = (0, left.tiles[0], first);
    // Each strip asks for its share of the streams.
    let streams = match rows.div_ceil(most) {
        0 | 1 => ahead.lines,
        2 => ahead.lines.div_ceil(2),
        _ => ahead.lines.div_ceil(3),
    };
    while row < rows {
        let run = (line - place).min(rows - row);
        let end = row + run;
        let mut first = start;
        while row < end {
            let height = usize::from(heights[run]).min(end - row);
            let lines = streams.min(lines_left);
            strip(height, first, row, &Ahead { start: wanted, lines, ..*ahead });
            wanted = wanted.wrapping_add(lines * ahead.apart);
            lines_left -= lines;
            first = first.wrapping_add(height * left.pitch);
            row += height;
        }
        start = start.wrapping_add(apart).wrapping_sub(place * left.pitch);
        place = 0;
    }
}

/// Multiplies rows from the first pointer on by the columns whose groups begin at the second, beginning with what is given,
/// and writes the sums to the last. Rows of sums lie [`BLOCK`] apart. Sums in f32 are given by their bits.
#[cfg(target_arch = "aarch64")]
pub(super) type Strip = unsafe fn(*const u8, &Left<'_>, *const u8, Begin<u32>, *mut i32);

/// A block by strips of so many rows, of which a tile has a whole number, and so many columns.
///
/// # Safety
/// As [`super::Tiles::block`], on a machine with the strip's instructions.
#[cfg(target_arch = "aarch64")]
pub(super) unsafe fn block<F: Factor>(strip: Strip, (high, wide): (usize, usize), block: &Block<'_, F>) {
    let &Block { ref left, panel, rows, begin, to, .. } = block;
    for row in (0..rows).step_by(high) {
        for column in (0..BLOCK).step_by(wide) {
            let place = row * BLOCK + column;
            // SAFETY: the caller's promise; the rows of a strip lie in one tile, and so do their sums.
            unsafe {
                let first = left.tiles[row / TILE].add(row % TILE * left.pitch);
                let begin = begin.bits().at(row, column);
                strip(first, left, panel.add(column * GROUP_BYTES), begin, to.cast::<i32>().add(place));
            }
        }
    }
}
