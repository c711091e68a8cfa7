//! When requests run, and which run together.
//!
//! Schedulers are plain state machines: requests go in with [`Scheduler::push`], and whoever has a free
//! instance asks [`Scheduler::poll`] what to do. They know no clock, no thread and no client; time is an
//! argument, so that tests step it.

mod default;
mod dynamic;
mod queue;
mod refusal;
mod sequence;
mod settings;
#[cfg(test)]
mod tests;

use std::time::Instant;

pub(crate) use default::Fifo;
pub(crate) use dynamic::{DynamicBatcher, Settings};
pub(crate) use queue::{Dropped, Full, Policy, TimeoutAction};
pub(crate) use refusal::{Refusal, Refused, STOPPING};
pub(crate) use sequence::{SequenceBatcher, SequenceSettings, SequenceStrategy};

use crate::request::Sequence;

/// What a scheduler must know about a request.
pub(crate) trait Item {
    /// Inferences in the request, at least 1.
    fn batch_size(&self) -> usize;
    /// The priority that the client asks for; 0: the default.
    fn priority(&self) -> u64;
    /// The longest time in the queue that the client asks for, in microseconds; 0: the default.
    fn timeout_us(&self) -> u64;
    /// Whether the client gave up.
    fn is_cancelled(&self) -> bool;
    /// Whether the request can run in one batch with `first`.
    fn joins(&self, first: &Self) -> bool;
    /// The sequence that the request belongs to.
    fn sequence(&self) -> &Sequence;
    /// Makes the request one of another sequence.
    fn set_sequence(&mut self, sequence: Sequence);
    /// The place that the request's sequence has in its instance.
    fn slot(&self) -> usize;
    /// Gives the request a place.
    fn set_slot(&mut self, slot: usize);
    /// What runs in place `slot` of a batch with this request while the sequence of that place has nothing to run:
    /// the same inputs without meaning, for nobody.
    fn stand_in(&self, slot: usize) -> Self;
}

/// What whoever has a free instance should do.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Poll<T> {
    /// Run these requests together. Never empty.
    Batch(Vec<T>),
    /// Ask again at this time, or when another request comes.
    WaitUntil(Instant),
    /// Ask again when another request comes.
    Idle,
}

/// The scheduler of one model.
#[derive(Debug)]
pub(crate) enum Scheduler<T> {
    /// One request at a time.
    Fifo(Fifo<T>),
    /// Requests are run in batches.
    Dynamic(DynamicBatcher<T>),
    /// Requests of a sequence run one after the other on the same instance.
    Sequence(Box<SequenceBatcher<T>>),
}

impl<T: Item> Scheduler<T> {
    /// Whether what runs next is known as soon as it is there: nothing that comes later changes it.
    pub fn is_fifo(&self) -> bool {
        matches!(self, Scheduler::Fifo(_))
    }

    /// Puts a request into the queue, or gives it back where it cannot be run. Returns when [`Scheduler::expire`] is to look
    /// at it.
    pub fn push(&mut self, item: T, now: Instant) -> Result<Option<Instant>, Refused<T>> {
        let full = |Full(item)| Refused { item, why: Refusal::Full };
        match self {
            Scheduler::Fifo(fifo) => {
                fifo.push(item);
                Ok(None)
            }
            Scheduler::Dynamic(batcher) => batcher.push(item, now).map_err(full),
            Scheduler::Sequence(batcher) => batcher.push(item, now).map(Some),
        }
    }

    /// The same for a request that has run and runs again.
    pub fn push_again(&mut self, item: T, now: Instant) -> Result<Option<Instant>, Refused<T>> {
        match self {
            Scheduler::Fifo(_) | Scheduler::Dynamic(_) => self.push(item, now),
            Scheduler::Sequence(batcher) => batcher.push_again(item, now).map(Some),
        }
    }

    /// What to do with the free instance `instance` at `now`.
    pub fn poll(&mut self, instance: usize, now: Instant) -> Poll<T> {
        match self {
            Scheduler::Fifo(fifo) => fifo.poll(),
            Scheduler::Dynamic(batcher) => batcher.poll(now),
            Scheduler::Sequence(batcher) => batcher.poll(instance, now),
        }
    }

    /// Drops requests and ends sequences that expired by `now`, also while no instance is free.
    pub fn expire(&mut self, now: Instant) {
        match self {
            Scheduler::Fifo(_) => {}
            Scheduler::Dynamic(batcher) => batcher.expire(now),
            Scheduler::Sequence(batcher) => batcher.expire(now),
        }
    }

    /// When the next request or sequence expires, as far as is known at `now`.
    pub fn next_deadline(&self, now: Instant) -> Option<Instant> {
        match self {
            Scheduler::Fifo(_) => None,
            Scheduler::Dynamic(batcher) => batcher.next_deadline(),
            Scheduler::Sequence(batcher) => batcher.next_deadline(now),
        }
    }

    /// Whether a request runs as soon as an instance is free, by itself and in the order of arrival.
    pub fn is_immediate(&self) -> bool {
        matches!(self, Scheduler::Fifo(_))
    }

    /// The sequences, where there are any.
    pub fn sequences(&mut self) -> Option<&mut SequenceBatcher<T>> {
        match self {
            Scheduler::Sequence(batcher) => Some(batcher),
            Scheduler::Fifo(_) | Scheduler::Dynamic(_) => None,
        }
    }

    /// Whether requests can expire at all.
    pub fn has_timeouts(&self) -> bool {
        match self {
            Scheduler::Fifo(_) => false,
            Scheduler::Dynamic(batcher) => batcher.has_timeouts(),
            Scheduler::Sequence(_) => true,
        }
    }

    /// The requests dropped since the last call, to be answered outside any lock.
    pub fn take_dropped(&mut self) -> Vec<(T, Dropped)> {
        match self {
            Scheduler::Fifo(fifo) => fifo.take_dropped(),
            Scheduler::Dynamic(batcher) => batcher.take_dropped(),
            Scheduler::Sequence(batcher) => batcher.take_dropped(),
        }
    }

    /// Number of requests in the queue.
    pub fn len(&self) -> usize {
        match self {
            Scheduler::Fifo(fifo) => fifo.len(),
            Scheduler::Dynamic(batcher) => batcher.len(),
            Scheduler::Sequence(batcher) => batcher.len(),
        }
    }

    /// Sequences that have begun and not ended, and run.
    pub fn open_sequences(&self) -> usize {
        match self {
            Scheduler::Fifo(_) | Scheduler::Dynamic(_) => 0,
            Scheduler::Sequence(batcher) => batcher.open(),
        }
    }

    /// No further requests come: whatever waits for company or for a test's start runs now.
    pub fn close(&mut self) {
        match self {
            Scheduler::Fifo(_) => {}
            Scheduler::Dynamic(batcher) => batcher.close(),
            Scheduler::Sequence(batcher) => batcher.close(),
        }
    }
}
