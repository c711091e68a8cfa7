use halimede_tensor::TensorError;

/// Why one operator refused its inputs or attributes. The caller knows the node and adds its name.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum OpError {
    /// The model breaks the operator's specification.
    #[error("{0}")]
    Invalid(String),
    /// The model is right but asks for something that is not built.
    #[error("not supported: {0}")]
    Unsupported(String),
    /// A tensor could not be made or read.
    #[error(transparent)]
    Tensor(#[from] TensorError),
}

impl OpError {
    /// The model breaks the operator's specification.
    pub fn invalid(message: impl Into<String>) -> OpError {
        OpError::Invalid(message.into())
    }

    /// The model is right but asks for something that is not built.
    pub fn unsupported(message: impl Into<String>) -> OpError {
        OpError::Unsupported(message.into())
    }
}

/// An [`OpError`] with the place where it happened.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("node '{node}' ({operator}): {source}")]
pub struct GraphError {
    /// Name of the node, or of its first output where the node has none.
    pub node: String,
    /// Operator with its domain where that is not ONNX's own, and its opset: `Conv (opset 17)`.
    pub operator: String,
    /// What was wrong.
    pub source: OpError,
}
