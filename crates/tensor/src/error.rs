use crate::{DType, Shape};

/// Why a tensor could not be made or read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TensorError {
    /// The bytes do not fill the shape.
    #[error("{dtype} tensor of shape {shape:?} needs {expected} bytes, got {actual}")]
    Size {
        /// Datatype of the tensor.
        dtype: DType,
        /// Shape of the tensor.
        shape: Shape,
        /// Bytes that the shape needs.
        expected: usize,
        /// Bytes that were given.
        actual: usize,
    },
    /// A reader asked for another datatype.
    #[error("expected a tensor of {expected}, got {actual}")]
    DType {
        /// What the reader asked for.
        expected: &'static str,
        /// What the tensor holds.
        actual: DType,
    },
    /// The product of the dimensions does not fit the address space.
    #[error("a tensor of shape {0:?} has more elements than can be addressed")]
    TooLarge(Shape),
    /// Two shapes cannot be broadcast together.
    #[error("shapes {0:?} and {1:?} cannot be broadcast together")]
    Broadcast(Shape, Shape),
    /// A new shape holds another number of elements.
    #[error("cannot view a tensor of shape {from:?} as {to:?}: the number of elements differs")]
    Reshape {
        /// Shape before.
        from: Shape,
        /// Shape asked for.
        to: Shape,
    },
    /// A sequence or an optional stands where a tensor is needed.
    #[error("expected a tensor, got {0}")]
    Kind(&'static str),
    /// A string that should spell a number does not.
    #[error("'{text}' does not read as a number of {to}")]
    Parse {
        /// The string.
        text: String,
        /// Datatype asked for.
        to: DType,
    },
    /// The memory could not be had.
    #[error("cannot allocate {0} bytes")]
    OutOfMemory(usize),
}
