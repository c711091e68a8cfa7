//! The strategy direct: a batch has the next request of every place, each in the row of its place, up to the last
//! place that has one. Places in between that have none get a stand-in.

use std::time::Instant;

use super::{Place, SequenceBatcher, SequenceStrategy, Slot, Step};
use crate::scheduler::{Item, Poll};

impl<T: Item> SequenceBatcher<T> {
    pub(super) fn poll_direct(&mut self, instance: usize, now: Instant) -> Poll<T> {
        if self.is_held {
            let waiting: usize = self.instances.values().map(|slots| slots.len()).sum();
            if waiting < self.settings.first_batch_hold || self.backlog.len() < self.settings.backlog_hold {
                return Poll::Idle;
            }
            self.is_held = false;
        }
        let slots = self.instances.get(&instance).map_or(0, |slots| slots.slots.len());
        let places = || (0..slots).map(|slot| Place { slot, instance });
        let ready: Vec<Place> = places().filter(|&place| self.settle(place, now)).collect();
        let Some(&last) = ready.last() else { return Poll::Idle };
        if let Some(until) = self.company_until(instance, ready.len()).filter(|until| now < *until && !self.closed) {
            return Poll::WaitUntil(until);
        }
        let mut batch: Vec<T> = Vec::with_capacity(last.slot + 1);
        let first = ready[0].slot;
        // The first request decides which others join, and what stand-ins look like.
        for place in places().skip(first).take(last.slot + 1 - first) {
            match self.take_next(place, batch.first(), now) {
                Some(item) => batch.push(item),
                None => {
                    let stand_in = batch.first().map(|first| first.stand_in(place.slot));
                    batch.extend(stand_in);
                }
            }
        }
        let in_front: Vec<T> =
            batch.first().map_or(Vec::new(), |like| (0..first).map(|slot| like.stand_in(slot)).collect());
        batch.splice(0..0, in_front);
        Poll::Batch(batch)
    }

    /// Until when a batch of so many requests waits for others.
    fn company_until(&self, instance: usize, ready: usize) -> Option<Instant> {
        let SequenceStrategy::Direct { queue_delay_max, slot_utilization_min, batch_size_max } = self.settings.strategy
        else {
            return None;
        };
        let utilization = ready as f32 / batch_size_max as f32;
        if queue_delay_max.is_zero() || slot_utilization_min == 0.0 || utilization >= slot_utilization_min {
            return None;
        }
        let slots = &self.instances.get(&instance)?.slots;
        let queued = slots.iter().filter_map(|slot| match slot.queue.front() {
            Some(Step::Request { queued, .. }) => Some(*queued),
            Some(Step::End) | None => None,
        });
        Some(queued.min()? + queue_delay_max)
    }

    /// The next request of a place, where it fits to `first`. After the last of a sequence another may come into the
    /// place; its requests run in later batches.
    fn take_next(&mut self, place: Place, first: Option<&T>, now: Instant) -> Option<T> {
        let slot: &mut Slot<T> = self.slot_mut(place)?;
        let Some(Step::Request { item, .. }) = slot.queue.front() else { return None };
        if first.is_some_and(|first| !item.joins(first)) {
            return None;
        }
        let mut item = slot.queue.pop_front().and_then(Step::into_request)?;
        item.set_slot(place.slot);
        slot.in_flight = true;
        if item.sequence().end {
            self.release(place, now);
        }
        Some(item)
    }
}
