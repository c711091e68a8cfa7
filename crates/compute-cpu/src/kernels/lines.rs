//! Where the numbers of blocked values lie.
//!
//! For kernels that treat each channel by itself, lines of channels are images that have so many.

use super::Machine;
use super::cuts::are_even;
use super::rows::part_mut;
use crate::matrix;
use crate::pool::own_bytes;
use halimede_compute::layout::{Band, Grid, LINE_BYTES, Layout, TILE, rows_apart};
use halimede_compute::{Arguments, Prepared, Step, TensorDesc};
use halimede_tensor::View;
use std::ops::Range;

// Tiles are read a line for each row, whole, also where fewer rows are left: what they read is there.
const _: () = assert!(matrix::TILE <= TILE && matrix::STEP_BYTES == LINE_BYTES);

/// How the columns of a matrix lie: in lines of so many numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Lines {
    /// Numbers from one row to the next.
    pub row: usize,
    pub len: usize,
    /// From one line of a row to the next.
    pub apart: usize,
}

impl Lines {
    /// Of so many rows, those of borders among them, and columns of numbers that have so many bytes.
    pub fn of(layout: Layout, rows: usize, columns: usize, bytes: usize) -> Lines {
        match layout {
            Layout::RowMajor => Lines { row: columns, len: columns, apart: columns },
            Layout::Blocked | Layout::Bordered(_) => {
                let len = LINE_BYTES / bytes;
                Lines { row: len, len, apart: rows_apart(rows) * len }
            }
        }
    }

    /// Where a column of the first row lies.
    pub fn column(&self, column: usize) -> usize {
        column / self.len * self.apart + column % self.len
    }
}

/// Whether rows of so many bytes are worth being blocked: in whole lines, or with a last one that makes them at most twice as long.
pub(super) fn fill_lines(bytes: usize) -> bool {
    let lines = bytes.next_multiple_of(LINE_BYTES);
    bytes > 0 && (lines - bytes) <= bytes
}

/// Whether they are in whole lines.
pub(super) fn fill_whole_lines(bytes: usize) -> bool {
    bytes > 0 && bytes.is_multiple_of(LINE_BYTES)
}

/// Fills up the last line of some rows of a blocked value, which lie a line apart, behind that byte.
///
/// # Safety
/// Nobody else touches those bytes meanwhile.
pub(super) unsafe fn fill_up(output: View<'_>, start: usize, rows: usize) {
    /// What most rows lack: their numbers come in groups of 8 of two bytes.
    const PARTS: [usize; 3] = [16, 32, 48];
    let rest = start.next_multiple_of(LINE_BYTES) - start;
    assert!(rows == 0 || start + (rows - 1) * LINE_BYTES + rest <= output.len());
    let first = output.as_ptr().wrapping_add(start);
    let lines = (0..rows).map(|row| first.wrapping_add(row * LINE_BYTES));
    // SAFETY: inside the output (just checked), and the caller's promise. So many bytes each, as the compiler knows, are one
    // instruction instead of a call.
    unsafe {
        match rest {
            0 => {}
            rest if rest == PARTS[0] => lines.for_each(|line| line.cast::<[u8; PARTS[0]]>().write([0; PARTS[0]])),
            rest if rest == PARTS[1] => lines.for_each(|line| line.cast::<[u8; PARTS[1]]>().write([0; PARTS[1]])),
            rest if rest == PARTS[2] => lines.for_each(|line| line.cast::<[u8; PARTS[2]]>().write([0; PARTS[2]])),
            rest => lines.for_each(|line| line.write_bytes(0, rest)),
        }
    }
}

/// A tensor whose channels lie last as images of a line of channels each, in the order in which they lie where it is
/// blocked; `None` where channels fill no whole lines.
pub(super) fn in_lines(desc: &TensorDesc) -> Option<TensorDesc> {
    let (line, mut shape) = (LINE_BYTES / desc.dtype.size(), desc.shape.clone());
    let channels = shape.last_mut().filter(|channels| channels.is_multiple_of(line))?;
    let lines = std::mem::replace(channels, line) / line;
    shape[0] *= lines;
    Some(TensorDesc { dtype: desc.dtype, shape })
}

/// Where the pixels of images lie, and the channels of a pixel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Raster {
    pub grid: Grid,
    pub lines: Lines,
    /// Whether the first row is the first of its image, and the last the last.
    edges: [bool; 2],
}

impl Raster {
    /// Of so many images of this height and width, whose pixels have so many channels, numbers of so many bytes.
    pub fn of(layout: Layout, images: usize, size: [usize; 2], channels: usize, bytes: usize) -> Raster {
        let grid = Grid::of(layout, size);
        Raster { grid, lines: Lines::of(layout, grid.rows(images), channels, bytes), edges: [true; 2] }
    }

    /// The same where those are some rows of one image, which is so high.
    pub fn of_band(self, layout: Layout, height: usize, edges: [bool; 2]) -> Raster {
        let whole = Grid { size: [height, self.grid.size[1]], ..self.grid };
        let apart = match layout {
            Layout::RowMajor => self.lines.apart,
            Layout::Blocked | Layout::Bordered(_) => rows_apart(whole.rows(1)) * self.lines.len,
        };
        Raster { lines: Lines { apart, ..self.lines }, edges, ..self }
    }

    /// The same of the data of a step and of its result, where it has a band.
    pub fn of_bands([data, result]: [(Raster, Layout); 2], band: Option<Band>) -> [Raster; 2] {
        let Some(Band { heights, edges, .. }) = band else { return [data.0, result.0] };
        [(data, heights[0], [true; 2]), (result, heights[1], edges)]
            .map(|((raster, layout), height, edges)| raster.of_band(layout, height, edges))
    }

    /// Where the first channel of a pixel lies, or of a place beyond the image that its border has.
    pub fn start(&self, image: usize, y: isize, x: isize) -> usize {
        self.grid.pixel(image, y, x) * self.lines.row
    }

    /// Writes zeros around an image, in those lines of channels.
    ///
    /// # Safety
    /// Nobody else touches that border meanwhile.
    pub unsafe fn clear_border<T>(&self, output: View<'_>, image: usize, lines: Range<usize>) {
        let (row, apart) = (self.lines.row * size_of::<T>(), self.lines.apart * size_of::<T>());
        for (line, piece) in
            lines.flat_map(|line| self.grid.border_of_band(image, self.edges).map(move |piece| (line, piece)))
        {
            // SAFETY: the caller's promise; zeros are numbers of every type.
            let piece = unsafe { part_mut::<u8>(output, line * apart + piece.start * row, piece.len() * row) };
            // Most are one line, as rows of blocked values are: cheaper than a call that fills any number of bytes.
            piece.as_chunks_mut::<LINE_BYTES>().0.fill([0; LINE_BYTES]);
        }
    }
}

/// Where images begin, in elements, and rows of their pixels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Images {
    /// Images that share a line of channels.
    count: usize,
    /// The first pixel, and from one image to the next.
    first: usize,
    apart: usize,
    /// From one line to the next.
    lines_apart: usize,
    /// From one row of pixels to the next.
    pub row: usize,
}

impl Images {
    /// One after the other, of so many rows that have so many elements.
    pub fn of(rows: usize, row: usize) -> Images {
        Images { count: usize::MAX, first: 0, apart: rows * row, lines_apart: 0, row }
    }

    /// Images of lines of a blocked value, of which `count` share a line.
    pub fn blocked(count: usize, raster: &Raster) -> Images {
        let Raster { grid, lines, .. } = raster;
        Images {
            count,
            first: raster.start(0, 0, 0),
            apart: grid.image() * lines.row,
            lines_apart: lines.apart,
            row: grid.line() * lines.row,
        }
    }

    /// Images of one pixel in a row-major value that has so many channels.
    pub fn pixels(count: usize, channels: usize, line: usize) -> Images {
        Images { count, first: 0, apart: channels, lines_apart: line, row: line }
    }

    /// Where an image begins.
    pub fn start(&self, image: usize) -> usize {
        image / self.count * self.lines_apart + image % self.count * self.apart + self.first
    }
}

/// Bytes of all lines below which one thread reads them.
const PARALLEL_BYTES: usize = 32 << 10;

/// A step that reads images of a line of channels and makes a line of each, for all lines of a blocked value: its result
/// is row-major.
pub(super) struct EachLine {
    pub images: usize,
    pub lines: usize,
    /// Bytes of what the inner step reads at a time.
    pub input: usize,
    /// The same of the result of an image.
    pub line: usize,
    pub inner: Box<dyn Step>,
    /// Bytes that the inner step wants.
    pub workspace: usize,
    pub machine: Machine,
}

impl EachLine {
    /// Bytes of the lines of all images.
    fn made(&self) -> usize {
        self.images * self.line
    }

    /// Threads that take lines each, which are those that they wrote themselves: the inner step then runs on one. Where lines are too few to be
    /// shared evenly, or small, it is left to that step who works at each of them.
    fn threads(&self) -> usize {
        let threads = self.machine.pool.threads();
        let is_small = self.lines * self.input < PARALLEL_BYTES;
        if is_small || !are_even(self.lines, threads) { 1 } else { threads }
    }

    fn thread_bytes(&self) -> usize {
        own_bytes(self.made().next_multiple_of(LINE_BYTES) + self.workspace)
    }

    pub fn prepared(self) -> Prepared {
        let workspace = self.threads() * self.thread_bytes();
        Prepared { step: Box::new(self), workspace }
    }

    fn run_line(&self, arguments: &Arguments<'_>, input: View<'_>, thread: usize, number: usize) {
        let own = arguments.workspace.part(thread * self.thread_bytes(), self.thread_bytes());
        let made = own.part(0, self.made());
        let workspace = own.part(self.made().next_multiple_of(LINE_BYTES), self.workspace);
        let inputs = &[Some(input)];
        self.inner.run(&Arguments { inputs, outputs: &[made], workspace, is_far: false });
        // SAFETY: the inner step is done, and nobody else writes this thread's part of the workspace.
        let made = unsafe { made.slice::<u8>() };
        for (image, made) in made.chunks_exact(self.line).enumerate() {
            let first = (image * self.lines + number) * self.line;
            // SAFETY: a line of the output that nobody else writes.
            unsafe { part_mut::<u8>(arguments.outputs[0], first, self.line) }.copy_from_slice(made);
        }
    }
}

impl Step for EachLine {
    fn run(&self, arguments: &Arguments<'_>) {
        let Some(input) = arguments.inputs[0] else { return };
        assert_eq!(arguments.outputs[0].len(), self.made() * self.lines);
        let apart = input.len() / self.lines.max(1);
        let line = |thread, number| self.run_line(arguments, input.part(number * apart, self.input), thread, number);
        match self.threads() {
            1 => (0..self.lines).for_each(|number| line(0, number)),
            threads => self.machine.pool.run_tasks(threads, self.lines, &line),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use halimede_tensor::Block;

    #[test]
    fn lines_are_filled_up_and_nothing_else() {
        for (start, rows) in (0..=LINE_BYTES).flat_map(|start| [(start, 0), (start, 1), (start, 3)]) {
            let memory = Block::new(4 * LINE_BYTES).expect("some memory");
            let view = memory.view(0, 4 * LINE_BYTES);
            // SAFETY: nobody else touches these bytes.
            let bytes = unsafe {
                view.slice_mut::<u8>().fill(7);
                fill_up(view, start, rows);
                view.slice::<u8>()
            };
            for (at, &byte) in bytes.iter().enumerate() {
                let is_filled = at / LINE_BYTES < rows && start < LINE_BYTES && at % LINE_BYTES >= start && start > 0;
                assert_eq!(byte, if is_filled { 0 } else { 7 }, "{at} from {start} on in {rows} rows");
            }
        }
    }
}
