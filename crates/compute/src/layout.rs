//! How the numbers of a value lie between two steps.
//!
//! Units that multiply tiles read the 16 rows of a tile a cache line each. Row by row those lines lie as far apart as a
//! row is long; in blocks they follow each other, and a block of results is written in one piece:
//!
//! ```text
//! row-major   [rows][columns]                      row 0: ████ ████ ████   row 1: ████ ████ ████   ...
//! blocked     [columns / line][rows][line]         column 0..: row 0 ████ row 1 ████ ...  column 32..: row 0 ████ ...
//! ```
//!
//! A kernel says how its operands may lie ([`Stances`]), the plan chooses, and prepares its steps for that. Nothing
//! outside of a plan ever sees a blocked value: what comes in, goes out, or is read by a definition is row-major.

use smallvec::SmallVec;

/// Bytes of a line, which holds adjacent columns of a row.
pub const LINE_BYTES: usize = 64;
/// Lines behind the end of a blocked value that can be read, whatever they hold: the rows of a last tile that are none.
pub const LINES_BEHIND: usize = 15;

/// How the numbers of a value lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Layout {
    /// The last axis innermost, without gaps.
    #[default]
    RowMajor,
    /// The last axis cut into pieces of [`LINE_BYTES`], all rows of the first piece first. Rows are those of all other
    /// axes together. The last axis fills whole lines, and [`LINES_BEHIND`] the end there is memory to read.
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
