use std::time::Duration;

use halimede_graph::GraphError;
use halimede_tensor::{DType, TensorError};

/// Why a graph could not be compiled for a unit.
#[derive(Debug, Clone, thiserror::Error)]
pub enum CompileError {
    /// A node of the graph is wrong or not supported.
    #[error(transparent)]
    Graph(#[from] GraphError),
    /// Memory could not be had.
    #[error(transparent)]
    Tensor(#[from] TensorError),
    /// The unit cannot take the graph at all.
    #[error("{unit}: {reason}")]
    Unit {
        /// Name of the unit.
        unit: String,
        /// Why.
        reason: String,
    },
}

/// Why a run failed.
#[derive(Debug, Clone, thiserror::Error)]
pub enum RunError {
    /// The number of inputs is not the model's.
    #[error("the model takes {expected} inputs, got {actual}")]
    InputCount {
        /// How many the model takes.
        expected: usize,
        /// How many were given.
        actual: usize,
    },
    /// An input has another datatype than the model says.
    #[error("input '{name}' should be {expected}, got {actual}")]
    InputType {
        /// Name of the input.
        name: String,
        /// The model's datatype.
        expected: DType,
        /// The datatype given.
        actual: DType,
    },
    /// An input has a shape that the model does not take.
    #[error("input '{name}' should have shape {expected}, got {actual}")]
    InputShape {
        /// Name of the input.
        name: String,
        /// The model's shape, with symbols.
        expected: String,
        /// The shape given.
        actual: String,
    },
    /// A node failed on these inputs.
    #[error(transparent)]
    Graph(#[from] GraphError),
    /// Memory could not be had.
    #[error(transparent)]
    Tensor(#[from] TensorError),
    /// The run's tensors come to more memory than the unit has.
    #[error("the model needs {bytes} bytes for its tensors at these inputs; {bytes_max} is all there is")]
    Memory {
        /// Bytes needed, as far as they were counted.
        bytes: usize,
        /// Bytes that the unit may use.
        bytes_max: usize,
    },
    /// Nobody waits for the outputs any more.
    #[error("the run was cancelled")]
    Cancelled,
    /// The run took longer than it may.
    #[error("the run was given up: not done after {} s", after.as_secs_f64())]
    Overdue {
        /// How long it had.
        after: Duration,
    },
}
