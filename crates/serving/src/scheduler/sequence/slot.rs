//! The place of a sequence in an instance.

use std::{collections::VecDeque, time::Instant};

use crate::{
    request::{CorrelationId, Sequence},
    scheduler::Item,
};

/// What waits in a place.
#[derive(Debug)]
pub(super) struct Slot<T> {
    /// The rest of the sequence as far as it came.
    pub queue: VecDeque<Step<T>>,
    /// Whether a request of the place runs or, with the strategy oldest, is among the candidates.
    pub in_flight: bool,
    /// When a request of the place last ended.
    pub ran: Option<Instant>,
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
        Self { queue: VecDeque::new(), in_flight: false, ran: None, is_taken: true }
    }

    /// Whether a request waits or runs.
    pub fn is_busy(&self) -> bool {
        self.in_flight || self.len() > 0
    }

    /// Whether a request waits that begins sequence `id`.
    pub fn begins(&self, id: &CorrelationId) -> bool
    where
        T: Item,
    {
        let begins = |sequence: &Sequence| sequence.start && sequence.id == *id;
        self.queue.iter().any(|step| matches!(step, Step::Request { item, .. } if begins(item.sequence())))
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
