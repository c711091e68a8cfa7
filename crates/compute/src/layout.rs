//! How the numbers of a value lie between two steps.
//!
//! Units that multiply tiles read the 16 rows of a tile a cache line each. Row by row those lines lie as far apart as a
//! row is long; in blocks they follow each other, and a block of results is written in one piece:
//!
//! ```text
//! row-major   [rows][columns]                  row 0 ████ ████ ████   row 1 ████ ████ ████   ...
//! blocked     [columns / line][rows][line]     columns 0.. row 0 ████ row 1 ████ ...   columns 32.. row 0 ████ row 1 ████ ...
//! ```
//!
//! Where columns leave a rest of a line, zeros fill it up: they are multiplied by weights of zero, which only finite numbers bear.
//! Who writes a blocked value writes them, every time: the memory may have held something else.
//!
//! A convolution that looks beyond a pixel copies what it sees, with zeros around it, unless they are there already: images of
//! blocked values may have a border. Two rows share what lies between them:
//!
//! ```text
//! border 1    . . . . .       the border above
//!             . a b c d       each row ends where the border of the next begins
//!             . e f g h
//!             . . . . .       the border below, and one pixel more behind the last image
//!             .
//! ```
//!
//! A kernel says how its operands may lie ([`Stances`]), the plan chooses, and prepares its steps for that. Nothing
//! outside of a plan ever sees a blocked value: what comes in, goes out, or is read by a definition is row-major.

use crate::TensorDesc;
use smallvec::SmallVec;
use std::ops::Range;

/// Bytes of a line, which holds adjacent columns of a row.
pub const LINE_BYTES: usize = 64;
/// Rows of a tile: of a blocked value one row less can be read behind the last, whatever is there.
pub const TILE: usize = 16;

/// Rows from a piece of columns to the next, where there are so many rows. Behind them there is memory to read, whatever it
/// holds: the rows of a last tile that are none. A row of tiles is read from every piece in turn, so that these lie an odd
/// number of KiB from each other: at a power of two all would fall into the same few sets of the caches.
pub fn rows_apart(rows: usize) -> usize {
    // The next odd multiple of a tile that leaves room for what is behind.
    rows.saturating_sub(1).next_multiple_of(2 * TILE) + TILE
}

/// How the numbers of a value lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Layout {
    /// The last axis innermost, without gaps.
    #[default]
    RowMajor,
    /// The last axis cut into pieces of [`LINE_BYTES`], all rows of the first piece first, those of the next
    /// [`rows_apart`]. Rows are those of all other axes together; zeros fill up their last lines.
    Blocked,
    /// The same of `[images, height, width, columns]`, in whole lines, where each image has a border of so many pixels, at least
    /// one, which are zeros.
    /// Where pixels lie says [`Grid`].
    Bordered(u8),
}

impl Layout {
    /// Bytes of a value of this datatype and shape; `None` where it cannot lie so.
    pub fn bytes(self, desc: &TensorDesc) -> Option<usize> {
        let columns = desc.shape.last()? * desc.dtype.size();
        let rows = match (self, desc.shape.as_slice()) {
            (Layout::RowMajor, _) => return Some(desc.bytes()),
            (Layout::Blocked, _) => desc.bytes().checked_div(columns)?,
            (Layout::Bordered(_), &[images, height, width, _]) => Grid::of(self, [height, width]).rows(images),
            (Layout::Bordered(_), _) => return None,
        };
        let can_be = columns > 0 && (self == Layout::Blocked || columns.is_multiple_of(LINE_BYTES));
        can_be.then(|| columns.div_ceil(LINE_BYTES) * rows_apart(rows) * LINE_BYTES)
    }

    /// Pixels around each image.
    pub fn border(self) -> usize {
        match self {
            Layout::Bordered(border) => border.into(),
            Layout::RowMajor | Layout::Blocked => 0,
        }
    }
}

/// Where the pixels of images lie: numbers of rows, each of which has the columns of a pixel, or those of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Grid {
    /// Pixels around each image.
    pub border: usize,
    /// Of an image.
    pub size: [usize; 2],
}

impl Grid {
    /// Of images of this height and width that lie so.
    pub fn of(layout: Layout, size: [usize; 2]) -> Grid {
        Grid { border: layout.border(), size }
    }

    /// From one row of pixels to the next.
    pub fn line(&self) -> usize {
        self.size[1] + self.border
    }

    /// From one image to the next.
    pub fn image(&self) -> usize {
        (self.size[0] + 2 * self.border) * self.line()
    }

    /// Of so many images, with what borders them.
    pub fn rows(&self, images: usize) -> usize {
        images * self.image() + self.border
    }

    /// The place of a pixel; `y` and `x` may lie beyond the image, by as much as the border.
    pub fn pixel(&self, image: usize, y: isize, x: isize) -> usize {
        let border = self.border as isize;
        image * self.image() + ((border + y) * self.line() as isize + border + x) as usize
    }

    /// The places of an image's border, in pieces.
    pub fn border_of(&self, image: usize) -> impl Iterator<Item = Range<usize>> + use<> {
        self.border_of_band(image, [true; 2])
    }

    /// The same of rows of an image, as many as this has, whose first and last are those of the image or have others above
    /// and below them.
    pub fn border_of_band(
        &self,
        image: usize,
        [is_first, is_last]: [bool; 2],
    ) -> impl Iterator<Item = Range<usize>> + use<> {
        let Grid { border, size: [height, _] } = *self;
        let (start, line) = (image * self.image(), self.line());
        let first = border * line;
        let between = (1..height).map(move |row| first + row * line..first + row * line + border);
        let end = first + height * line;
        let last = end..if is_last { self.image() + border } else { end + border };
        // What is above and left of the first row is one piece, and so is what is right of the last and below.
        let ends = [if is_first { 0 } else { first }..first + border, last];
        let pieces = between.chain(ends).map(move |piece| start + piece.start..start + piece.end);
        pieces.take(if border > 0 { usize::MAX } else { 0 })
    }
}

/// How an operand may lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stance {
    /// Row-major alone.
    RowMajor,
    /// Either way, and it makes no difference.
    Either,
    /// Either way, and the step is faster where it is blocked.
    Faster,
    /// Either way, and the step is faster where it is blocked with a border of so many pixels, or more.
    Bordered(u8),
    /// As the step's first output does.
    AsOutput,
}

/// How the operands of a step may lie.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stances {
    /// By input; further ones are row-major.
    pub inputs: SmallVec<[Stance; 4]>,
    /// Of the first output; further ones are row-major.
    pub output: Stance,
    /// Whether images of the operands that may be blocked may have a border, too, of any width.
    pub takes_borders: bool,
}

impl Stances {
    /// Whether the step is faster with some operand blocked.
    pub fn wants_blocks(&self) -> bool {
        let wants = |stance: &Stance| matches!(stance, Stance::Faster | Stance::Bordered(_));
        wants(&self.output) || self.inputs.iter().any(wants)
    }

    /// The same for a step to which it makes no difference.
    pub fn indifferent(self) -> Stances {
        let or_either = |stance: Stance| if stance == Stance::Faster { Stance::Either } else { stance };
        let inputs = self.inputs.into_iter().map(or_either).collect();
        Stances { inputs, output: or_either(self.output), ..self }
    }
}

/// A band: some rows of one image, of which a step sees no others and makes no others.
///
/// The operands lie as those of the whole image do, and begin with the first row at hand; what has the image's rows, such as
/// a residual, has those of the result.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Band {
    /// Rows of the whole images of the data and of the result.
    pub heights: [usize; 2],
    /// How many rows above those of the data the first window begins: they are the image's border.
    pub above: usize,
    /// Whether the result has the first row of its image, and the last.
    pub edges: [bool; 2],
}

/// How the operands of a step lie; by default all of them row-major.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Layouts {
    /// By input.
    pub inputs: SmallVec<[Layout; 4]>,
    /// Of the first output.
    pub output: Layout,
    /// Where the operands have some rows of an image.
    pub band: Option<Band>,
}

impl Layouts {
    /// How an input lies.
    pub fn input(&self, input: usize) -> Layout {
        self.inputs.get(input).copied().unwrap_or_default()
    }

    /// Whether an input is blocked, without a border.
    pub fn is_blocked(&self, input: usize) -> bool {
        self.input(input) == Layout::Blocked
    }

    /// Whether some operand is of images that have a border.
    pub fn have_borders(&self) -> bool {
        self.inputs.iter().chain([&self.output]).any(|layout| layout.border() > 0)
    }

    /// Whether everything is row-major.
    pub fn are_row_major(&self) -> bool {
        self.output == Layout::RowMajor && self.inputs.iter().all(|layout| *layout == Layout::RowMajor)
    }

    /// Whether everything is row-major and whole, as [`Kernel::prepare`](crate::Kernel::prepare) expects it.
    pub fn are_plain(&self) -> bool {
        self.are_row_major() && self.band.is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use halimede_tensor::DType;

    #[test]
    fn pieces_lie_apart() {
        assert_eq!([0, 1, 2, 16, 33, 34, 128, 1024].map(rows_apart), [16, 16, 48, 48, 48, 80, 144, 1040]);
        for rows in 0..200 {
            let apart = rows_apart(rows);
            assert!(
                apart + 1 >= rows + TILE && apart < rows + 3 * TILE && apart % (2 * TILE) == TILE,
                "{rows}: {apart}"
            );
        }
        let desc = |shape: &[usize]| TensorDesc { dtype: DType::Bf16, shape: shape.into() };
        assert_eq!(Layout::Blocked.bytes(&desc(&[2, 64, 96])), Some(3 * 144 * 64));
        assert_eq!(Layout::Blocked.bytes(&desc(&[2, 64, 72])), Some(3 * 144 * 64), "the last line is filled up");
        assert_eq!([&[4, 0][..], &[]].map(|shape| Layout::Blocked.bytes(&desc(shape))), [None; 2]);
        // Two images of 4 x 7 pixels in rows of 8, a row above and below each.
        assert_eq!(Layout::Bordered(1).bytes(&desc(&[2, 4, 7, 32])), Some(rows_apart(2 * 6 * 8 + 1) * 64));
        assert_eq!([&[4, 7, 32][..], &[2, 4, 7, 40]].map(|shape| Layout::Bordered(1).bytes(&desc(shape))), [None; 2]);
        assert_eq!(Layout::RowMajor.bytes(&desc(&[4, 40])), Some(320));
    }

    #[test]
    fn every_place_is_a_pixel_or_a_border() {
        for (border, size, images) in [(0, [3, 4], 2), (1, [3, 4], 2), (2, [1, 5], 3), (3, [2, 1], 1)] {
            let layout = if border == 0 { Layout::Blocked } else { Layout::Bordered(border) };
            let grid = Grid::of(layout, size);
            let mut met = vec![0; grid.rows(images)];
            for image in 0..images {
                for (y, x) in (0..size[0]).flat_map(|y| (0..size[1]).map(move |x| (y, x))) {
                    met[grid.pixel(image, y as isize, x as isize)] += 10;
                }
                grid.border_of(image).flatten().for_each(|place| met[place] += 1);
                // What is seen from the corners belongs to the border.
                let (border, [height, width]) = (isize::from(border), size.map(|size| size as isize));
                for (y, x) in [(-border, -border), (height - 1 + border, width - 1 + border)] {
                    let place = grid.pixel(image, y, x);
                    assert!(border == 0 || grid.border_of(image).any(|piece| piece.contains(&place)));
                }
            }
            // Bands of an image write its border once, but for what two of them share.
            let mut of_bands = vec![0; grid.rows(1)];
            for row in 0..size[0] {
                let band = Grid { size: [1, size[1]], ..grid };
                let pieces = band.border_of_band(0, [row == 0, row + 1 == size[0]]);
                pieces.flatten().for_each(|place| of_bands[row * grid.line() + place] += 1);
            }
            let mut whole: Vec<usize> = grid.border_of(0).flatten().collect();
            whole.sort_unstable();
            let places = (0..of_bands.len()).filter(|&place| of_bands[place] > 0);
            assert!(places.eq(whole), "{grid:?}");
            // Neighbouring images share what lies between them.
            assert!(met.iter().all(|&times| times == 10 || border > 0 && (1..=2).contains(&times)), "{met:?}");
            assert_eq!(met.iter().filter(|&&times| times == 10).count(), images * size[0] * size[1]);
        }
    }
}
