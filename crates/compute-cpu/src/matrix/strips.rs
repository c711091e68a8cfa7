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

/// Strips of as many rows each, one behind the other.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy)]
pub struct Many {
    /// The place of the first row in the block.
    pub row: usize,
    pub strips: usize,
}

#[cfg(all(target_arch = "x86_64", test))]
impl Many {
    /// One strip, from the first row on.
    pub const ONE: Many = Many { row: 0, strips: 1 };
}

/// What strips ask for, each its share of the streams.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy)]
pub struct Share {
    /// Of all that follow.
    ahead: Ahead,
    /// Of each, at most.
    lines: usize,
}

#[cfg(target_arch = "x86_64")]
impl Share {
    /// Nothing.
    #[cfg(test)]
    pub const NOTHING: Share = Share { ahead: Ahead::NOTHING, lines: 0 };

    /// Of a strip, counted from the first of these.
    #[inline(always)]
    pub fn of(&self, strip: usize) -> Ahead {
        let before = (strip * self.lines).min(self.ahead.lines);
        let start = self.ahead.start.wrapping_add(before * self.ahead.apart);
        Ahead { start, lines: self.lines.min(self.ahead.lines - before), ..self.ahead }
    }

    /// What is left behind so many strips.
    #[inline(always)]
    fn behind(&self, strips: usize) -> Share {
        let before = (strips * self.lines).min(self.ahead.lines);
        let start = self.ahead.start.wrapping_add(before * self.ahead.apart);
        Share { ahead: Ahead { start, lines: self.ahead.lines - before, ..self.ahead }, ..*self }
    }
}

/// Calls `strips` for the rows of a block, line by line: with the number of rows of a strip, the address of the first, which strips
/// they are, and what those ask for meanwhile. No strip crosses the end of a line. `heights` are [`heights`] of `most`.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(super) fn by_lines(
    left: &Left<'_>,
    rows: usize,
    (heights, most): (&[u8; BLOCK + 1], usize),
    ahead: &Ahead,
    mut strips: impl FnMut(usize, *const u8, Many, &Share),
) {
    let Lines { first, rows: line, apart } = left.lines;
    let (mut row, mut start, mut place) = (0, left.tiles[0], first);
    let mut share = Share { ahead: *ahead, lines: ahead.lines.div_ceil(rows.div_ceil(most).max(1)) };
    while row < rows {
        let run = (line - place).min(rows - row);
        let end = row + run;
        let mut first = start;
        while row < end {
            let rest = end - row;
            let even = || rest.div_ceil(rest.div_ceil(most));
            let height = heights.get(rest).map_or_else(even, |&height| usize::from(height));
            let many = Many { row, strips: rest / height };
            strips(height, first, many, &share);
            share = share.behind(many.strips);
            first = first.wrapping_add(many.strips * height * left.pitch);
            row += many.strips * height;
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
