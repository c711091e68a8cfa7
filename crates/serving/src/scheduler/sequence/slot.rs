//! The place of a sequence in an instance.

use std::{collections::VecDeque, time::Instant};

/// What waits in a place.
#[derive(Debug)]
pub(super) struct Slot<T> {
    /// The rest of the sequence as far as it came.
    pub queue: VecDeque<Step<T>>,
    /// Whether a request of the place is among the candidates or runs; with the strategy oldest.
    pub in_flight: bool,
    /// Whether a sequence has the place.
    pub is_taken: bool,
}

#[derive(Debug)]
pub(super) enum Step<T> {
    Request {
        item: T,
        /// When it came.
        queued: Instant,
    },
    /// The sequence is over without a last request.
    End,
}

impl<T> Slot<T> {
    /// A place that is about to be given away.
    pub fn taken() -> Self {
        Self { queue: VecDeque::new(), in_flight: false, is_taken: true }
    }

    /// Requests in the queue.
    pub fn len(&self) -> usize {
        self.queue.iter().filter(|step| matches!(step, Step::Request { .. })).count()
    }
}

impl<T> Step<T> {
    pub fn into_request(self) -> Option<T> {
        match self {
            Step::Request { item, .. } => Some(item),
            Step::End => None,
        }
    }
}
