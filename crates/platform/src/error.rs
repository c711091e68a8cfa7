use std::fmt::Display;
use std::io;

/// A call into the operating system that failed: what was attempted, on which object, and why.
///
/// Reads as `cannot map file '/models/weights.bin': Permission denied (os error 13)`.
#[derive(Debug, thiserror::Error)]
#[error("cannot {action} {object}: {cause}")]
pub struct Error {
    action: &'static str,
    object: String,
    cause: io::Error,
}

impl Error {
    pub(crate) fn new(action: &'static str, object: impl Display, cause: io::Error) -> Self {
        Self { action, object: object.to_string(), cause }
    }

    /// The system's own error, for callers that branch on its kind.
    pub fn os_error(&self) -> &io::Error {
        &self.cause
    }
}
