//! The one error of the crate: a status code that every protocol can map, and a text for people.

use std::time::Duration;

/// What an error means to a client. The protocols map each code to a status of their own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Code {
    /// Something went wrong and nobody said what.
    Unknown,
    /// The server or a model failed.
    Internal,
    /// There is no such model, version or tensor.
    NotFound,
    /// The request or the configuration is wrong.
    InvalidArgument,
    /// The server cannot do this now: it is exiting, a queue is full, a time is over.
    Unavailable,
    /// The server does not have this feature.
    Unsupported,
    /// The thing to be made exists.
    AlreadyExists,
    /// The client gave up.
    Cancelled,
}

impl Code {
    /// The name as Triton prints it in front of messages, such as `Invalid argument`.
    pub fn name(self) -> &'static str {
        match self {
            Code::Unknown => "Unknown",
            Code::Internal => "Internal",
            Code::NotFound => "Not found",
            Code::InvalidArgument => "Invalid argument",
            Code::Unavailable => "Unavailable",
            Code::Unsupported => "Unsupported",
            Code::AlreadyExists => "Already exists",
            Code::Cancelled => "Cancelled",
        }
    }
}

/// Why something failed. The text is what clients see; where Triton has one, it is Triton's.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Error {
    /// What the error means to a client.
    pub code: Code,
    /// What happened, where, and the way out.
    pub message: String,
    /// When to try again, where that is known to help.
    pub retry_after: Option<Duration>,
}

macro_rules! constructors {
    ($($(#[$doc:meta])* $name:ident: $code:ident;)*) => {
        impl Error {
            $($(#[$doc])* pub fn $name(message: impl Into<String>) -> Self {
                Self { code: Code::$code, message: message.into(), retry_after: None }
            })*
        }
    };
}

constructors! {
    /// An error nobody can explain.
    unknown: Unknown;
    /// The server or a model failed.
    internal: Internal;
    /// There is no such thing.
    not_found: NotFound;
    /// The request or the configuration is wrong.
    invalid: InvalidArgument;
    /// Not now.
    unavailable: Unavailable;
    /// Not in this server.
    unsupported: Unsupported;
    /// The client gave up.
    cancelled: Cancelled;
}

impl From<halimede_tensor::TensorError> for Error {
    fn from(error: halimede_tensor::TensorError) -> Self {
        Error::internal(error.to_string())
    }
}
