//! Where the numbers of blocked values lie.
//!
//! For kernels that treat each channel by itself, lines of channels are images that have so many.

use crate::matrix;
use halimede_compute::layout::{LINE_BYTES, Layout, TILE, rows_apart};
use halimede_compute::{Arguments, Prepared, Step, TensorDesc};

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
    /// Of so many rows and columns of numbers that have so many bytes.
    pub fn of(layout: Layout, rows: usize, columns: usize, bytes: usize) -> Lines {
        match layout {
            Layout::RowMajor => Lines { row: columns, len: columns, apart: columns },
            Layout::Blocked => {
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

/// A tensor whose channels lie last as images of a line of channels each, in the order in which they lie where it is
/// blocked; `None` where channels fill no whole lines.
pub(super) fn in_lines(desc: &TensorDesc) -> Option<TensorDesc> {
    let (line, mut shape) = (LINE_BYTES / desc.dtype.size(), desc.shape.clone());
    let channels = shape.last_mut().filter(|channels| channels.is_multiple_of(line))?;
    let lines = std::mem::replace(channels, line) / line;
    shape[0] *= lines;
    Some(TensorDesc { dtype: desc.dtype, shape })
}

/// Where images begin, in elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Images {
    /// Images that share a line of channels.
    count: usize,
    /// From one to the next.
    apart: usize,
    /// From one line to the next.
    lines_apart: usize,
}

impl Images {
    /// One after the other, of so many elements each.
    pub fn of(len: usize) -> Images {
        Images { count: usize::MAX, apart: len, lines_apart: 0 }
    }

    /// Images of lines of a blocked value: `count` of them share a line, and each has so many pixels.
    pub fn blocked(count: usize, pixels: usize, line: usize) -> Images {
        Images { count, apart: pixels * line, lines_apart: rows_apart(count * pixels) * line }
    }

    /// Images of one pixel in a row-major value that has so many channels.
    pub fn pixels(count: usize, channels: usize, line: usize) -> Images {
        Images { count, apart: channels, lines_apart: line }
    }

    /// Where an image begins.
    pub fn start(&self, image: usize) -> usize {
        image / self.count * self.lines_apart + image % self.count * self.apart
    }
}

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
}

impl EachLine {
    /// Bytes of the lines of all images.
    fn made(&self) -> usize {
        self.images * self.line
    }

    pub fn prepared(self) -> Prepared {
        let workspace = self.made().next_multiple_of(LINE_BYTES) + self.workspace;
        Prepared { step: Box::new(self), workspace }
    }
}

impl Step for EachLine {
    fn run(&self, arguments: &Arguments<'_>) {
        let Some(input) = arguments.inputs[0] else { return };
        assert_eq!(arguments.outputs[0].len(), self.made() * self.lines);
        let apart = input.len() / self.lines.max(1);
        let made = arguments.workspace.part(0, self.made());
        let workspace = arguments.workspace.part(self.made().next_multiple_of(LINE_BYTES), self.workspace);
        for number in 0..self.lines {
            let inputs = &[Some(input.part(number * apart, self.input))];
            self.inner.run(&Arguments { inputs, outputs: &[made], workspace, is_far: false });
            // SAFETY: the inner step is done, and nobody else writes either of them.
            let (made, output) = unsafe { (made.slice::<u8>(), arguments.outputs[0].slice_mut::<u8>()) };
            for (made, row) in made.chunks_exact(self.line).zip(output.chunks_exact_mut(self.line * self.lines)) {
                row[number * self.line..][..self.line].copy_from_slice(made);
            }
        }
    }
}
