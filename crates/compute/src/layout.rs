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
//! A kernel says how its operands may lie ([`Stances`]), the plan chooses, and prepares its steps for that. Nothing
//! outside of a plan ever sees a blocked value: what comes in, goes out, or is read by a definition is row-major.

use crate::TensorDesc;
use smallvec::SmallVec;

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

/// Bytes of a blocked value of this datatype and shape; `None` where rows are no whole lines.
pub fn blocked_bytes(desc: &TensorDesc) -> Option<usize> {
    let columns = desc.shape.last()? * desc.dtype.size();
    let rows = desc.bytes().checked_div(columns)?;
    columns.is_multiple_of(LINE_BYTES).then(|| columns / LINE_BYTES * rows_apart(rows) * LINE_BYTES)
}

/// How the numbers of a value lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Layout {
    /// The last axis innermost, without gaps.
    #[default]
    RowMajor,
    /// The last axis cut into pieces of [`LINE_BYTES`], all rows of the first piece first, those of the next
    /// [`rows_apart`]. Rows are those of all other axes together, and whole lines.
    Blocked,
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
}

impl Stances {
    /// Whether the step is faster with some operand blocked.
    pub fn wants_blocks(&self) -> bool {
        self.output == Stance::Faster || self.inputs.contains(&Stance::Faster)
    }

    /// The same for a step to which it makes no difference.
    pub fn indifferent(self) -> Stances {
        let or_either = |stance: Stance| if stance == Stance::Faster { Stance::Either } else { stance };
        Stances { inputs: self.inputs.into_iter().map(or_either).collect(), output: or_either(self.output) }
    }
}

/// How the operands of a step lie; by default all of them row-major.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Layouts {
    /// By input.
    pub inputs: SmallVec<[Layout; 4]>,
    /// Of the first output.
    pub output: Layout,
}

impl Layouts {
    /// Whether an input is blocked.
    pub fn is_blocked(&self, input: usize) -> bool {
        self.inputs.get(input) == Some(&Layout::Blocked)
    }

    /// Whether everything is row-major.
    pub fn are_row_major(&self) -> bool {
        self.output == Layout::RowMajor && self.inputs.iter().all(|layout| *layout == Layout::RowMajor)
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
        assert_eq!(blocked_bytes(&desc(&[2, 64, 96])), Some(3 * 144 * 64));
        assert_eq!(
            [blocked_bytes(&desc(&[4, 40])), blocked_bytes(&desc(&[4, 0])), blocked_bytes(&desc(&[]))],
            [None; 3]
        );
    }
}
