//! Why a scheduler does not take a request.

use super::Item;
use crate::{error::Error, request::CorrelationId};

/// A request that a scheduler gives back.
#[derive(Debug)]
pub(crate) struct Refused<T> {
    /// The request.
    pub item: T,
    /// Why it is not taken.
    pub why: Refusal,
}

/// Why a request is not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// Its queue is full.
    Full,
    /// It has more than one inference, and sequences go step by step.
    Batched,
    /// It belongs to no sequence.
    NoSequence,
    /// Its sequence has not begun.
    NotStarted,
    /// Its sequence is one that the server began for another.
    Own,
    /// It begins a sequence, and no further ones are taken.
    Stopping,
}

/// What Triton says while it ends.
pub(crate) const STOPPING: &str =
    "Server is stopping, scheduler for model has stopped accepting new inference requests";

impl<T: Item> Refused<T> {
    /// The text that the client hears, and the request. `log_prefix` stands in front where Triton puts it there.
    pub fn into_error(self, model: &str, log_prefix: impl FnOnce(&T) -> String) -> (T, Error) {
        let error = match self.why {
            Refusal::Full => Error::unavailable(format!("{}Exceeds maximum queue size", log_prefix(&self.item))),
            Refusal::Batched => Error::invalid(format!(
                "inference request to model '{model}' must specify batch-size 1 due to requirements of sequence batcher"
            )),
            Refusal::NoSequence => Error::invalid(format!(
                "inference request to model '{model}' must specify a non-zero or non-empty correlation ID"
            )),
            Refusal::NotStarted => Error::invalid(format!(
                "inference request for sequence {} to model '{model}' must specify the START flag on the first request \
                 of the sequence",
                self.item.sequence().id
            )),
            Refusal::Own => Error::invalid(format!(
                "inference request to model '{model}' names sequence {}, which the server began for a request without one: \
                 use another correlation ID",
                self.item.sequence().id
            )),
            Refusal::Stopping => Error::unavailable(STOPPING),
        };
        (self.item, error)
    }
}

impl std::fmt::Display for CorrelationId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            CorrelationId::Int(id) => id.fmt(f),
            CorrelationId::String(id) => f.write_str(id),
        }
    }
}
