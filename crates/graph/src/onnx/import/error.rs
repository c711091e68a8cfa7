use crate::GraphError;
use std::fmt;
use std::path::{Path, PathBuf};

/// Why a model could not be read, with the file it lies in.
#[derive(Debug)]
pub struct ImportError {
    /// The model's file, where it came from one.
    pub file: Option<PathBuf>,
    /// What was wrong.
    pub reason: Reason,
}

/// What is wrong with a model.
#[derive(Debug, thiserror::Error)]
pub enum Reason {
    /// A file could not be read or is not where it should be.
    #[error("{0}")]
    File(String),
    /// The bytes are not an ONNX model.
    #[error("not an ONNX model: {0}. The file may be cut short, a Git LFS pointer, or of another format")]
    Format(String),
    /// The model as a whole breaks ONNX's rules or is of a version that is not known.
    #[error("{0}")]
    Model(String),
    /// A tensor that is stored in the model.
    #[error("tensor '{name}': {reason}")]
    Tensor {
        /// Its name.
        name: String,
        /// What is wrong.
        reason: String,
    },
    /// One node.
    #[error(transparent)]
    Node(#[from] GraphError),
}

impl ImportError {
    pub(crate) fn new(file: &Path, reason: Reason) -> ImportError {
        ImportError { file: Some(file.to_owned()), reason }
    }
}

impl Reason {
    pub(super) fn model(message: impl Into<String>) -> Reason {
        Reason::Model(message.into())
    }

    pub(super) fn tensor(name: &str, reason: impl Into<String>) -> Reason {
        Reason::Tensor { name: name.to_owned(), reason: reason.into() }
    }

    pub(super) fn of(self, file: Option<&Path>) -> ImportError {
        ImportError { file: file.map(Path::to_owned), reason: self }
    }
}

impl fmt::Display for ImportError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(file) = &self.file {
            write!(f, "{}: ", file.display())?;
        }
        write!(f, "{}", self.reason)
    }
}

impl std::error::Error for ImportError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.reason)
    }
}
