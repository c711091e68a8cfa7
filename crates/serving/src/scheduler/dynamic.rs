//! The dynamic batcher: requests of several clients run together.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use super::{
    Dropped, Full, Item, Poll,
    queue::{Cursor, Policy, PriorityQueue},
};

/// How batches are formed.
#[derive(Debug, Clone, Default)]
pub(crate) struct Settings {
    /// Most inferences in a batch.
    pub batch_size_max: usize,
    /// Sizes at which a batch runs at once.
    pub preferred_batch_sizes: BTreeSet<usize>,
    /// How long a batch of another size waits for more requests.
    pub queue_delay_max: Duration,
    /// Number of priority levels; 0: no priorities.
    pub priority_levels: u64,
    /// The level of requests that ask for none, or for one that does not exist.
    pub default_priority_level: u64,
    /// Limits of levels that have none of their own.
    pub default_policy: Policy,
    /// Limits by level.
    pub policies: BTreeMap<u64, Policy>,
    /// Nothing runs before so many requests wait; tests set it to build a known queue.
    pub first_batch_hold: usize,
}

/// Forms batches from the front of a priority queue.
#[derive(Debug)]
pub(crate) struct DynamicBatcher<T> {
    queue: PriorityQueue<T>,
    settings: Settings,
    hold: usize,
    closed: bool,
}

impl<T: Item> DynamicBatcher<T> {
    pub fn new(settings: Settings) -> Self {
        let queue = PriorityQueue::new(settings.default_policy, settings.policies.clone());
        let hold = settings.first_batch_hold;
        Self { queue, settings, hold, closed: false }
    }

    /// Returns when the request is to be refused.
    pub fn push(&mut self, item: T, now: Instant) -> Result<Option<Instant>, Full<T>> {
        let level = match item.priority() {
            level if level == 0 || level > self.settings.priority_levels => self.settings.default_priority_level,
            level => level,
        };
        self.queue.push(level, item, now)
    }

    /// Takes the longest run of requests from the front that fit together: the same shapes, at most
    /// `batch_size_max` inferences. It runs
    ///
    /// - at a preferred size, the largest that was passed; beyond all preferred sizes, before they are
    ///   passed;
    /// - as it is, once the oldest request waited `queue_delay_max`, or where it cannot grow;
    ///
    /// and otherwise waits.
    pub fn poll(&mut self, now: Instant) -> Poll<T> {
        if self.queue.len() < self.hold {
            return Poll::Idle;
        }
        self.hold = 0;
        let pending = self.pending(now);
        let Some(oldest) = pending.oldest else { return Poll::Idle };
        let delay = self.settings.queue_delay_max;
        let due = oldest + delay;
        let delay_is_over = now >= due || self.closed;
        if let Some(count) = pending.preferred.filter(|_| delay.is_zero() || !delay_is_over) {
            return Poll::Batch(self.queue.take(count));
        }
        let preferred_max = self.settings.preferred_batch_sizes.last().copied().unwrap_or(0);
        if delay_is_over || pending.is_complete || pending.size >= preferred_max {
            return Poll::Batch(self.queue.take(pending.count));
        }
        Poll::WaitUntil(pending.deadline.map_or(due, |deadline| due.min(deadline + Duration::from_micros(1))))
    }

    /// Looks at the front of the queue, as far as requests fit together.
    fn pending(&mut self, now: Instant) -> Pending {
        let preferred_max = self.settings.preferred_batch_sizes.last().copied().unwrap_or(0);
        let mut pending = Pending::default();
        let mut first = None;
        let mut cursor = Cursor::default();
        while self.queue.seek(&mut cursor, now) {
            let Some(entry) = self.queue.at(cursor) else { break };
            let size = pending.size + entry.item.batch_size();
            if let Some(first) = first.and_then(|first| self.queue.at(first)) {
                if size > preferred_max && pending.preferred.is_none() {
                    pending.preferred = Some(pending.count);
                }
                if size > self.settings.batch_size_max || !entry.item.joins(&first.item) {
                    pending.is_complete = true;
                    break;
                }
            }
            first.get_or_insert(cursor);
            pending.size = size;
            pending.count += 1;
            pending.oldest = Some(pending.oldest.map_or(entry.queued, |oldest| oldest.min(entry.queued)));
            pending.deadline = pending.deadline.into_iter().chain(entry.deadline).min();
            if self.settings.preferred_batch_sizes.contains(&size) {
                pending.preferred = Some(pending.count);
            }
            cursor = cursor.next();
        }
        pending
    }

    pub fn expire(&mut self, now: Instant) {
        self.queue.expire(now);
    }

    pub fn next_deadline(&self) -> Option<Instant> {
        self.queue.next_deadline()
    }

    pub fn has_timeouts(&self) -> bool {
        self.queue.has_timeouts()
    }

    pub fn take_dropped(&mut self) -> Vec<(T, Dropped)> {
        self.queue.take_dropped()
    }

    pub fn len(&self) -> usize {
        self.queue.len()
    }

    pub fn close(&mut self) {
        self.closed = true;
        self.hold = 0;
    }
}

/// The requests at the front of the queue that fit together.
#[derive(Debug, Default)]
struct Pending {
    /// Inferences in them.
    size: usize,
    /// How many there are.
    count: usize,
    /// How many of them make a batch of preferred size.
    preferred: Option<usize>,
    /// Whether no later request can join them.
    is_complete: bool,
    /// When the oldest came; `None` without any.
    oldest: Option<Instant>,
    /// When the first of them expires.
    deadline: Option<Instant>,
}
