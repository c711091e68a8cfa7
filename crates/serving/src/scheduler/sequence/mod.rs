//! The sequence batcher: requests of a sequence run one after the other, in order of arrival and on the same
//! instance.
//!
//! Every instance has places for so many sequences. A sequence takes a place with its first request and keeps it
//! until its last, or until it was idle for too long, with nothing that waits or runs; where no place is free, it waits
//! in the backlog. What runs together of the requests in the places is the strategy's: [`direct`] runs the next of each
//! place, always in the row of its place; [`oldest`] gives them to a dynamic batcher.

mod backlog;
mod direct;
mod oldest;
mod slot;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    time::{Duration, Instant},
};

use self::{
    backlog::{Backlog, Waiting},
    oldest::Candidates,
    slot::{Slot, Step},
};
use super::{Dropped, Item, Poll, Refusal, Refused, Settings};
use crate::request::{CorrelationId, Sequence};

/// The first of the numbers for sequences without one: clients count from 1. It is positive as a signed number too.
const OWN_ID_MIN: u64 = 1 << 62;

/// How often it is looked whether clients of the backlog are gone, as long as there is one, and
const BACKLOG_LOOK: Duration = Duration::from_millis(20);
/// how often at most whether a sequence that runs has become idle.
const BUSY_LOOK_MIN: Duration = Duration::from_millis(10);

/// How sequences are run.
#[derive(Debug, Clone)]
pub(crate) struct SequenceSettings {
    /// Name of the model, for the log.
    pub model: String,
    /// Sequences that an instance runs at a time.
    pub slots: usize,
    /// A sequence that has nothing that waits or runs for so long is over.
    pub idle_max: Duration,
    /// Whether requests that belong to no sequence begin one of their own, which the model ends.
    pub is_iterative: bool,
    pub strategy: SequenceStrategy,
    /// Nothing runs before so many requests wait in places, and so many in the backlog; tests set it to build a
    /// known queue.
    pub first_batch_hold: usize,
    pub backlog_hold: usize,
}

/// What runs together.
#[derive(Debug, Clone)]
pub(crate) enum SequenceStrategy {
    /// The next request of every sequence, each in the row of its place.
    Direct {
        /// How long a batch waits for requests of other sequences,
        queue_delay_max: Duration,
        /// as long as so great a part of the places has none.
        slot_utilization_min: f32,
        /// Rows of a batch.
        batch_size_max: usize,
    },
    /// Whatever a dynamic batcher makes of the next request of every sequence.
    Oldest(Settings),
}

/// Where sequences and their requests are.
#[derive(Debug)]
pub(crate) struct SequenceBatcher<T> {
    settings: SequenceSettings,
    instances: BTreeMap<usize, Slots<T>>,
    /// Places without a sequence, the lowest first: sequences spread over instances, and batches stay short.
    free: BTreeSet<Place>,
    /// Sequences whose last request has not come.
    open: HashMap<CorrelationId, Open>,
    backlog: Backlog<T>,
    next_id: u64,
    dropped: Vec<(T, Dropped)>,
    is_held: bool,
    is_stopped: bool,
    closed: bool,
}

/// A place of an instance. The order is that in which places are taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    slot: usize,
    instance: usize,
}

/// A sequence that goes on.
#[derive(Debug)]
struct Open {
    at: At,
    /// When its last request came.
    seen: Instant,
    /// Whether it has no number of a client.
    is_own: bool,
}

/// Where the requests of a sequence go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum At {
    Place(Place),
    /// The entry of the backlog with this number.
    Backlog(u64),
}

/// The places of an instance.
#[derive(Debug)]
struct Slots<T> {
    slots: Vec<Slot<T>>,
    /// With [`SequenceStrategy::Oldest`].
    candidates: Option<Candidates<T>>,
    /// Places whose requests run, until the instance asks for more.
    running: Vec<usize>,
    /// Whether the instance ends with the sequences that it has.
    is_leaving: bool,
}

impl<T: Item> SequenceBatcher<T> {
    pub fn new(settings: SequenceSettings) -> Self {
        let is_held = settings.first_batch_hold > 0;
        Self {
            settings,
            instances: BTreeMap::new(),
            free: BTreeSet::new(),
            open: HashMap::new(),
            backlog: Backlog::default(),
            next_id: OWN_ID_MIN,
            dropped: Vec::new(),
            is_held,
            is_stopped: false,
            closed: false,
        }
    }

    /// An instance that takes sequences from now on.
    pub fn add_instance(&mut self, instance: usize, now: Instant) {
        let candidates = match &self.settings.strategy {
            SequenceStrategy::Direct { .. } => None,
            SequenceStrategy::Oldest(settings) => Some(Candidates::new(settings.clone())),
        };
        let slots = (0..self.settings.slots).map(|_| Slot::taken()).collect();
        self.instances.insert(instance, Slots { slots, candidates, running: Vec::new(), is_leaving: false });
        for slot in 0..self.settings.slots {
            let place = Place { slot, instance };
            self.release(place, now);
            self.advance(place, now);
        }
    }

    /// An instance takes no further sequences; [`SequenceBatcher::is_gone`] once those that it has are over.
    pub fn remove_instance(&mut self, instance: usize) {
        self.free.retain(|place| {
            let is_mine = place.instance == instance;
            if is_mine && let Some(slots) = self.instances.get_mut(&instance) {
                slots.slots[place.slot].is_taken = false;
            }
            !is_mine
        });
        if let Some(slots) = self.instances.get_mut(&instance) {
            slots.is_leaving = true;
        }
    }

    /// Whether an instance is removed and has nothing left to do.
    pub fn is_gone(&mut self, instance: usize) -> bool {
        let is_gone = self.instances.get(&instance).is_none_or(Slots::has_gone);
        if is_gone {
            self.instances.remove(&instance);
        }
        is_gone
    }

    /// Whether any instance is removed and has nothing left to do.
    pub fn has_gone(&self) -> bool {
        self.instances.values().any(Slots::has_gone)
    }

    /// Whether an instance may have something to run.
    pub fn has_work(&self, instance: usize) -> bool {
        self.instances.get(&instance).is_some_and(|slots| slots.has_work() || slots.has_gone())
    }

    /// Puts a request behind those of its sequence. Returns by when it has to be looked at again.
    pub fn push(&mut self, mut item: T, now: Instant) -> Result<Instant, Refused<T>> {
        let refuse = |item, why| Err(Refused { item, why });
        if item.batch_size() > 1 {
            return refuse(item, Refusal::Batched);
        }
        let is_own = !item.sequence().id.is_some();
        if is_own {
            if !self.settings.is_iterative {
                return refuse(item, Refusal::NoSequence);
            }
            let id = self.unused_id();
            item.set_sequence(Sequence { id, start: true, end: false });
        } else if self.open.get(&item.sequence().id).is_some_and(|open| open.is_own) {
            // Nobody enters the sequence of another.
            return refuse(item, Refusal::Own);
        }
        self.enter(item, is_own, now)
    }

    /// Puts a request that runs again behind those of its sequence.
    pub fn push_again(&mut self, item: T, now: Instant) -> Result<Instant, Refused<T>> {
        let is_own = self.open.get(&item.sequence().id).is_some_and(|open| open.is_own);
        self.enter(item, is_own, now)
    }

    fn enter(&mut self, item: T, is_own: bool, now: Instant) -> Result<Instant, Refused<T>> {
        let refuse = |item, why| Err(Refused { item, why });
        let Sequence { id, start, end } = item.sequence().clone();
        if self.is_stopped && start {
            return refuse(item, Refusal::Stopping);
        }
        let at = match self.open.get_mut(&id) {
            Some(open) => {
                if start {
                    let model = &self.settings.model;
                    tracing::warn!(
                        "sequence {id} for model '{model}' has a conflict. The previous sequence did not end before \
                         this sequence start. Previous sequence will be terminated early."
                    );
                }
                open.seen = now;
                open.at
            }
            None if !start => return refuse(item, Refusal::NotStarted),
            None => {
                let at = match self.free.pop_first() {
                    Some(place) => At::Place(place),
                    None => At::Backlog(self.backlog.add()),
                };
                self.open.insert(id.clone(), Open { at, seen: now, is_own });
                at
            }
        };
        if end {
            self.open.remove(&id);
        }
        let idle = now + self.busy_look();
        match at {
            At::Backlog(number) => {
                let deadline = self.backlog.push(number, item, now);
                Ok(idle.min(now + BACKLOG_LOOK).min(deadline.unwrap_or(idle)))
            }
            At::Place(place) => {
                if let Some(slot) = self.slot_mut(place) {
                    slot.is_taken = true;
                    slot.queue.push_back(Step::Request { item, queued: now });
                }
                self.advance(place, now);
                Ok(idle)
            }
        }
    }

    /// A number that no sequence has.
    fn unused_id(&mut self) -> CorrelationId {
        loop {
            let id = CorrelationId::Int(self.next_id);
            self.next_id = self.next_id.wrapping_add(1).max(OWN_ID_MIN);
            if !self.open.contains_key(&id) {
                return id;
            }
        }
    }

    /// What to run on `instance`, which has run all that it was given.
    pub fn poll(&mut self, instance: usize, now: Instant) -> Poll<T> {
        let ran = self.instances.get_mut(&instance).map(|slots| std::mem::take(&mut slots.running));
        for slot in ran.unwrap_or_default() {
            self.complete(Place { slot, instance }, now);
        }
        if self.closed {
            self.end_idle_sequences(instance, now);
        }
        let poll = match self.settings.strategy {
            SequenceStrategy::Direct { .. } => self.poll_direct(instance, now),
            SequenceStrategy::Oldest(_) => self.poll_oldest(instance, now),
        };
        if let (Poll::Batch(items), Some(slots)) = (&poll, self.instances.get_mut(&instance)) {
            let running = items.iter().map(Item::slot);
            // A stand-in fills a place of which nothing runs.
            slots.running = running.filter(|slot| slots.slots.get(*slot).is_some_and(|slot| slot.in_flight)).collect();
        }
        poll
    }

    /// The model has ended the sequence that ran in place `slot` of `instance`.
    pub fn end(&mut self, id: &CorrelationId, instance: usize, slot: usize, now: Instant) {
        let place = Place { slot, instance };
        // Elsewhere, or where what waits there begins it anew, it is another sequence, which goes on.
        let is_there = self.open.get(id).is_some_and(|open| open.at == At::Place(place));
        if is_there && !self.slot_mut(place).is_some_and(|slot| slot.begins(id)) {
            self.open.remove(id);
            self.force_end(place, now);
        }
    }

    /// Ends sequences that were idle for too long, and drops sequences that wait too long for a place or whose clients are
    /// gone.
    pub fn expire(&mut self, now: Instant) {
        let idle = |open: &Open| self.idle_until(open).filter(|(until, _)| *until <= now).map(|(_, place)| place);
        let idle: Vec<(CorrelationId, Place)> =
            self.open.iter().filter_map(|(id, open)| idle(open).map(|place| (id.clone(), place))).collect();
        for (id, place) in idle {
            self.open.remove(&id);
            self.force_end(place, now);
        }
        for waiting in self.backlog.take_cancelled() {
            self.drop_waiting(waiting, Dropped::Cancelled);
        }
        for waiting in self.backlog.take_expired(now) {
            self.drop_waiting(waiting, Dropped::SequenceExpired);
        }
    }

    fn drop_waiting(&mut self, waiting: Waiting<T>, why: Dropped) {
        if let Some(last) = waiting.items.back().map(|(item, _)| item.sequence()).filter(|last| !last.end) {
            self.open.remove(&last.id);
        }
        self.dropped.extend(waiting.items.into_iter().map(|(item, _)| (item, why)));
    }

    /// When [`SequenceBatcher::expire`] may have something to do, as far as is known at `now`. What becomes idle later
    /// expires later still.
    pub fn next_deadline(&self, now: Instant) -> Option<Instant> {
        let placed = self.open.values().filter(|open| matches!(open.at, At::Place(_)));
        let idle = placed.map(|open| self.idle_until(open).map_or(now + self.busy_look(), |(until, _)| until)).min();
        let look = (!self.backlog.is_empty()).then(|| now + BACKLOG_LOOK);
        idle.into_iter().chain(look).chain(self.backlog.next_deadline()).min()
    }

    /// When a sequence that has a place has been idle for too long, and the place; `None` while something of it waits or
    /// runs.
    fn idle_until(&self, open: &Open) -> Option<(Instant, Place)> {
        let At::Place(place) = open.at else { return None };
        let slot = self.instances.get(&place.instance)?.slots.get(place.slot)?;
        let since = slot.ran.map_or(open.seen, |ran| ran.max(open.seen));
        (!slot.is_busy()).then(|| (since + self.settings.idle_max, place))
    }

    /// After what time it is looked again at what waits or runs.
    fn busy_look(&self) -> Duration {
        self.settings.idle_max.max(BUSY_LOOK_MIN)
    }

    /// Ends a sequence in its place: at once, or behind what waits or runs there.
    fn force_end(&mut self, place: Place, now: Instant) {
        let Some(slot) = self.slot_mut(place) else { return };
        if slot.queue.is_empty() && !slot.in_flight {
            self.release(place, now);
            self.advance(place, now);
        } else {
            slot.queue.push_back(Step::End);
        }
    }

    /// Once nothing more comes, sequences that have nothing to run leave their places to the backlog.
    fn end_idle_sequences(&mut self, instance: usize, now: Instant) {
        let slots = self.instances.get(&instance).map_or(0, |slots| slots.slots.len());
        for place in (0..slots).map(|slot| Place { slot, instance }) {
            let is_idle = self.slot_mut(place).is_some_and(|slot| slot.is_taken && !slot.is_busy());
            if is_idle && !self.backlog.is_empty() {
                self.open.retain(|_, open| open.at != At::Place(place));
                self.release(place, now);
                self.advance(place, now);
            }
        }
    }

    /// Gives a place whose sequence is over to the one that waits longest in the backlog, or to whoever comes. What
    /// is left of the old sequence is cancelled. Returns whether another sequence is in the place.
    fn release(&mut self, place: Place, now: Instant) -> bool {
        let Some(slots) = self.instances.get_mut(&place.instance) else { return false };
        let slot = &mut slots.slots[place.slot];
        let left = slot.queue.drain(..).filter_map(Step::into_request);
        self.dropped.extend(left.map(|item| (item, Dropped::Cancelled)));
        slot.is_taken = false;
        if slots.is_leaving {
            return false;
        }
        while let Some(waiting) = self.backlog.pop() {
            let is_cancelled = waiting.items.iter().any(|(item, _)| item.is_cancelled());
            // While its last request has not come, what comes for the sequence goes where it goes.
            if let Some(last) = waiting.items.back().map(|(item, _)| item.sequence()).filter(|last| !last.end) {
                match is_cancelled {
                    true => drop(self.open.remove(&last.id)),
                    false => {
                        if let Some(open) = self.open.get_mut(&last.id) {
                            (open.at, open.seen) = (At::Place(place), now);
                        }
                    }
                }
            }
            if is_cancelled {
                self.dropped.extend(waiting.items.into_iter().map(|(item, _)| (item, Dropped::Cancelled)));
                continue;
            }
            slot.queue.extend(waiting.items.into_iter().map(|(item, queued)| Step::Request { item, queued }));
            slot.is_taken = true;
            return true;
        }
        self.free.insert(place);
        false
    }

    /// Ends the sequence of a place whose next request is cancelled or that is to end; also those that come into the
    /// place then. True once the place has a request to run.
    fn settle(&mut self, place: Place, now: Instant) -> bool {
        loop {
            let Some(slot) = self.slot_mut(place) else { return false };
            match slot.queue.front() {
                None => return false,
                Some(Step::End) => drop(slot.queue.pop_front()),
                Some(Step::Request { item, .. }) if item.is_cancelled() => {
                    let id = item.sequence().id.clone();
                    if self.open.get(&id).is_some_and(|open| open.at == At::Place(place)) {
                        self.open.remove(&id);
                    }
                }
                Some(Step::Request { .. }) => return true,
            }
            self.release(place, now);
        }
    }

    fn slot_mut(&mut self, place: Place) -> Option<&mut Slot<T>> {
        self.instances.get_mut(&place.instance)?.slots.get_mut(place.slot)
    }

    /// The requests dropped since the last call.
    pub fn take_dropped(&mut self) -> Vec<(T, Dropped)> {
        std::mem::take(&mut self.dropped)
    }

    /// Requests that wait.
    pub fn len(&self) -> usize {
        self.instances.values().map(Slots::len).sum::<usize>() + self.backlog.len()
    }

    /// Sequences that have a place and have not ended.
    pub fn open(&self) -> usize {
        self.open.values().filter(|open| matches!(open.at, At::Place(_))).count()
    }

    /// No further sequences are taken; those that have begun go on.
    pub fn stop(&mut self) {
        self.is_stopped = true;
    }

    /// Nothing more comes.
    pub fn close(&mut self) {
        self.closed = true;
        self.is_held = false;
        for slots in self.instances.values_mut() {
            if let Some(candidates) = &mut slots.candidates {
                candidates.close();
            }
        }
    }
}

impl<T: Item> Slots<T> {
    fn len(&self) -> usize {
        let waiting: usize = self.slots.iter().map(Slot::len).sum();
        waiting + self.candidates.as_ref().map_or(0, Candidates::len)
    }

    /// What has run leaves its place when the instance asks for more.
    fn has_work(&self) -> bool {
        !self.running.is_empty()
            || self.slots.iter().any(|slot| !slot.in_flight && !slot.queue.is_empty())
            || self.candidates.as_ref().is_some_and(|candidates| candidates.len() > 0)
    }

    fn is_idle(&self) -> bool {
        self.slots.iter().all(|slot| !slot.is_taken && slot.queue.is_empty()) && self.len() == 0
    }

    /// Whether the instance is removed and has nothing left to do.
    fn has_gone(&self) -> bool {
        self.is_leaving && self.is_idle()
    }
}
