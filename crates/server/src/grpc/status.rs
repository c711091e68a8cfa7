//! Errors as gRPC has them.

use halimede_serving::{Code, Error};
use tonic::Status;

/// The status that tells a client of `error`.
pub(crate) fn from_error(error: Error) -> Status {
    let code = match error.code {
        Code::Unknown => tonic::Code::Unknown,
        Code::Internal => tonic::Code::Internal,
        Code::NotFound => tonic::Code::NotFound,
        Code::InvalidArgument => tonic::Code::InvalidArgument,
        Code::Unavailable => tonic::Code::Unavailable,
        Code::Unsupported => tonic::Code::Unimplemented,
        Code::AlreadyExists => tonic::Code::AlreadyExists,
        Code::Cancelled => tonic::Code::Cancelled,
    };
    let mut status = Status::new(code, error.message);
    if let Some(time) = error.retry_after {
        // What clients with a policy of retries wait for.
        let milliseconds = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        status.metadata_mut().insert("grpc-retry-pushback-ms", milliseconds.into());
    }
    status
}

/// `name` of a version in a message.
pub(crate) fn text_of(version: i64) -> String {
    version.to_string()
}
