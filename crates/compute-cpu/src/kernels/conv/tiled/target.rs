//! Where the blocks of a task of a convolution go: to pixels of the output, of one part of it or several.

use super::super::phases::Parts;
use crate::kernels::lines::Raster;
use crate::kernels::tiled::{Finishing, Piece, Product, TiledWeights};
use crate::matrix::{BLOCK, Begin, Ends, Later, Runs, Sink, Sums};

/// Where the blocks of a task go.
pub(super) struct Target<'a, F: Product> {
    pub finishing: Finishing<'a, F>,
    pub parts: &'a Parts<TiledWeights<F::Right>>,
    /// Panels of a part.
    pub each: usize,
    /// The first image, and rows of the product from one to the next.
    pub image: usize,
    pub apart: usize,
    /// The first row of the output.
    pub first: usize,
    pub pixels: Pixels,
    /// Where the first row of the product lies in the output, if all others of an image follow it there.
    pub in_one_row: Option<usize>,
    /// The last panel that was asked for: most are next, too.
    pub panel: PanelPlace,
}

/// A panel among the columns of the output.
#[derive(Clone, Copy)]
pub(super) struct PanelPlace {
    pub panel: usize,
    pub part: usize,
    /// Its first column, and how many it has.
    pub column: usize,
    pub columns: usize,
    /// Where that column lies in a row of the output.
    pub start: usize,
}

impl PanelPlace {
    pub const NONE: PanelPlace = PanelPlace { panel: usize::MAX, part: 0, column: 0, columns: 0, start: 0 };
}

/// What the pixels of the output are among the rows of a product.
pub(super) struct Pixels {
    /// Rows of the product from one row of the output to the next, and how many of them are pixels.
    pub across: usize,
    pub width: usize,
    pub columns: usize,
    /// The first column among those of the output.
    pub first_column: usize,
    pub to: Raster,
}

impl Pixels {
    /// Whether only pixels of the output were computed, and those of an image lie in a row.
    pub fn are_in_one_row(&self, step: [usize; 2]) -> bool {
        self.across == self.width && self.to.grid.line() == self.width && step == [1; 2]
    }
}

/// A row of a product as a pixel: its image, and its place in rows of the product.
#[derive(Clone, Copy)]
struct Place {
    image: usize,
    y: usize,
    x: usize,
}

impl<F: Product> Target<'_, F> {
    /// A row of the product.
    fn place(&self, row: usize) -> Place {
        let (image, at) = (self.image + row / self.apart, row % self.apart);
        Place { image, y: at / self.pixels.across, x: at % self.pixels.across }
    }

    /// Rows of a block, of a panel, from a place on that are pixels next to each other, at most so many; and how many are done with
    /// them.
    fn piece(&self, place: Place, panel: PanelPlace, most: usize) -> (Option<Piece>, usize) {
        let &Pixels { across, width, to: Raster { grid, lines, .. }, .. } = &self.pixels;
        let Place { image, y, x } = place;
        let target = self.parts[panel.part].0;
        let run = (across - x).min(most);
        let piece = (x < width).then(|| {
            let [row, at] = target.place(self.first + y, x).map(|place| place as isize);
            Piece {
                rows: run.min(width - x),
                columns: panel.columns,
                column: panel.column,
                start: grid.pixel(image, row, at) * lines.row + panel.start,
                row: target.step[1] * lines.row,
                has_room: false,
            }
        });
        (piece, run)
    }

    /// The pixels among so many rows of a block, of a panel, from a place on: the first run of them, and all runs.
    #[inline(always)]
    fn runs(&self, place: Place, panel: PanelPlace, rows: usize) -> (Piece, Runs) {
        let &Pixels { across, width, to: Raster { grid, lines, .. }, .. } = &self.pixels;
        let Place { image, y, x } = place;
        // Pixels among so many rows from the beginning of a line on.
        let pixels = |rows: usize| rows / across * width + (rows % across).min(width);
        let count = pixels(x + rows) - x.min(width);
        let (before, y, x) = if x < width { (0, y, x) } else { (across - x, y + 1, 0) };
        let target = self.parts[panel.part].0;
        let start = |y: usize, x: usize| {
            let [row, at] = target.place(self.first + y, x).map(|place| place as isize);
            grid.pixel(image, row, at) * lines.row + panel.start
        };
        let row = target.step[1] * lines.row;
        // Lines of every second pixel can begin before the next pixel of the one before would.
        let farther = (start(y + 1, 0) - start(y, 0)).wrapping_sub(width * row) as isize;
        let PanelPlace { columns, column, .. } = panel;
        let piece = Piece { rows: count, columns, column, start: start(y, x), row, has_room: false };
        (piece, Runs { rows: count, before, first: width - x, each: width, skipped: across - width, farther })
    }

    /// Where a panel is.
    #[inline]
    fn panel(&mut self, panel: usize) -> PanelPlace {
        if self.panel.panel != panel {
            let (part, column) = (panel / self.each, panel % self.each * BLOCK);
            let columns = BLOCK.min(self.pixels.columns - column);
            let column = self.pixels.first_column + column;
            let start = self.pixels.to.lines.column(column);
            self.panel = PanelPlace { panel, part, column, columns, start };
        }
        self.panel
    }

    /// So many rows of a block, of one image as all of a block are, where those are one piece.
    #[inline]
    fn in_one_row(&self, row: usize, panel: PanelPlace, rows: usize) -> Option<Piece> {
        let first = self.in_one_row?;
        let Raster { grid, lines, .. } = self.pixels.to;
        // Most products are of one image, and need no division.
        let (image, row) = if row < self.apart { (0, row) } else { (row / self.apart, row % self.apart) };
        let PanelPlace { column, columns, start, .. } = panel;
        let start = (first + image * grid.image() + row) * lines.row + start;
        Some(Piece { rows, columns, column, start, row: lines.row, has_room: false })
    }
}

impl<F: Product> Sink<F::Sum> for Target<'_, F> {
    fn begins(&self) -> bool {
        self.finishing.begins()
    }

    fn begin(&mut self, panel: usize) -> Begin<F::Sum> {
        let PanelPlace { column, columns, .. } = self.panel(panel);
        self.finishing.begin_of(column..column + columns)
    }

    fn store(&mut self, sums: &mut Sums<F::Sum>, (row, panel): (usize, usize), rows: usize) {
        let panel = self.panel(panel);
        if let Some(piece) = self.in_one_row(row, panel, rows) {
            // SAFETY: tasks have disjoint parts of the output.
            return unsafe { self.finishing.store(piece, &mut sums.0) };
        }
        let (mut at, mut place) = (0, self.place(row));
        while at < rows {
            let (piece, run) = self.piece(place, panel, rows - at);
            if let Some(piece) = piece {
                // SAFETY: as above.
                unsafe { self.finishing.store(piece, &mut sums.0[at * BLOCK..]) };
            }
            at += run;
            // Pieces end with their row at the latest.
            place = Place { y: place.y + 1, x: 0, ..place };
        }
    }

    fn ends(&mut self, (row, panel): (usize, usize), rows: usize) -> Option<&Ends> {
        if !self.finishing.may_end() {
            return None;
        }
        let panel = self.panel(panel);
        let in_one_row = self.in_one_row(row, panel, rows);
        let piece = in_one_row.or_else(|| self.piece(self.place(row), panel, rows).0)?;
        if piece.rows < rows {
            return None;
        }
        // SAFETY: as above.
        unsafe { self.finishing.ends(piece) }
    }

    fn ends_later(&mut self, (row, panel): (usize, usize), rows: usize) -> Option<&Later> {
        if !self.finishing.may_end() {
            return None;
        }
        let panel = self.panel(panel);
        if let Some(piece) = self.in_one_row(row, panel, rows) {
            // SAFETY: as above.
            return unsafe { self.finishing.ends_later(piece, Runs::one(rows)) };
        }
        let (piece, runs) = self.runs(self.place(row), panel, rows);
        // SAFETY: as above.
        unsafe { self.finishing.ends_later(piece, runs) }
    }

    fn takes_turns(&self, rows: usize) -> bool {
        // Of one image, whose pixels follow each other.
        self.finishing.may_end() && self.in_one_row.is_some() && rows <= self.apart
    }

    fn ends_in_turn(&mut self, (row, panel): (usize, usize), rows: usize, number: usize) -> Option<Later> {
        let panel = self.panel(panel);
        let piece = self.in_one_row(row, panel, rows)?;
        // SAFETY: as above.
        unsafe { self.finishing.ends_in_turn(piece, number) }
    }
}
