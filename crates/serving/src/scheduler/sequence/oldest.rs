//! The strategy oldest: the next request of every place is a candidate, and a dynamic batcher makes batches of the
//! candidates.

use std::time::Instant;

use super::{Place, SequenceBatcher, Step};
use crate::scheduler::{Dropped, DynamicBatcher, Item, Poll, Settings};

/// The candidates of an instance.
#[derive(Debug)]
pub(super) struct Candidates<T> {
    batcher: DynamicBatcher<T>,
}

impl<T: Item> Candidates<T> {
    pub fn new(settings: Settings) -> Self {
        Self { batcher: DynamicBatcher::new(settings) }
    }

    pub fn len(&self) -> usize {
        self.batcher.len()
    }

    pub fn close(&mut self) {
        self.batcher.close();
    }
}

impl<T: Item> SequenceBatcher<T> {
    pub(super) fn poll_oldest(&mut self, instance: usize, now: Instant) -> Poll<T> {
        let place = |slot| Place { slot, instance };
        loop {
            let Some(candidates) = self.candidates_mut(instance) else { return Poll::Idle };
            let poll = candidates.batcher.poll(now);
            let dropped: Vec<(T, Dropped)> = candidates.batcher.take_dropped();
            let is_settled = dropped.is_empty();
            for (item, why) in dropped {
                self.complete(place(item.slot()), now);
                self.dropped.push((item, why));
            }
            if is_settled || matches!(poll, Poll::Batch(_)) {
                return poll;
            }
        }
    }

    fn candidates_mut(&mut self, instance: usize) -> Option<&mut Candidates<T>> {
        self.instances.get_mut(&instance)?.candidates.as_mut()
    }

    /// The request of a place has run, or was dropped.
    pub(super) fn complete(&mut self, place: Place, now: Instant) {
        if let Some(slot) = self.slot_mut(place) {
            slot.in_flight = false;
            slot.ran = Some(now);
        }
        self.advance(place, now);
    }

    /// Makes the next request of a place a candidate, where none is one.
    pub(super) fn advance(&mut self, place: Place, now: Instant) {
        let is_free = self.slot_mut(place).is_some_and(|slot| !slot.in_flight);
        if !is_free || self.candidates_mut(place.instance).is_none() || !self.settle(place, now) {
            return;
        }
        let Some(slot) = self.slot_mut(place) else { return };
        let Some(mut item) = slot.queue.pop_front().and_then(Step::into_request) else { return };
        slot.in_flight = true;
        item.set_slot(place.slot);
        if item.sequence().end {
            self.release(place, now);
        }
        let candidates = self.candidates_mut(place.instance);
        // The queue of candidates has no limit.
        candidates.map(|candidates| candidates.batcher.push(item, now).is_ok());
    }
}
