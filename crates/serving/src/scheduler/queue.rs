//! A queue with priority levels, each with its own limits.

use std::{
    collections::{BTreeMap, VecDeque},
    time::{Duration, Instant},
};

use super::Item;

/// Limits of one priority level.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Policy {
    /// What happens to requests that wait too long.
    pub timeout_action: TimeoutAction,
    /// How long requests may wait; zero: for ever.
    pub default_timeout: Duration,
    /// Whether a request may ask for less than the default.
    pub allow_timeout_override: bool,
    /// Requests that may wait at once; 0: any number.
    pub queue_len_max: usize,
}

/// What happens to requests that wait too long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TimeoutAction {
    /// They are refused.
    Reject,
    /// They run after those of their level that are in time.
    Delay,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            timeout_action: TimeoutAction::Reject,
            default_timeout: Duration::ZERO,
            allow_timeout_override: false,
            queue_len_max: 0,
        }
    }
}

impl Policy {
    /// How long a request that asks for `timeout_us` may wait. It can only shorten the default: without
    /// one, it waits for ever, as in Triton.
    fn timeout(&self, timeout_us: u64) -> Option<Duration> {
        let asked = Duration::from_micros(timeout_us);
        let shortened = self.allow_timeout_override && timeout_us != 0 && asked < self.default_timeout;
        let timeout = if shortened { asked } else { self.default_timeout };
        (!timeout.is_zero()).then_some(timeout)
    }
}

/// Why a request left the queue without running.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Dropped {
    /// It waited too long.
    Expired,
    /// Its sequence waited too long for a place.
    SequenceExpired,
    /// Its client gave up.
    Cancelled,
}

/// The request that did not fit into its level.
#[derive(Debug)]
pub(crate) struct Full<T>(pub T);

/// A queue with priority levels. The order is: lower level first; within a level requests that are in
/// time before those that are delayed, each in order of arrival.
#[derive(Debug)]
pub(crate) struct PriorityQueue<T> {
    levels: BTreeMap<u64, Level<T>>,
    policies: BTreeMap<u64, Policy>,
    default_policy: Policy,
    len: usize,
    dropped: Vec<(T, Dropped)>,
}

#[derive(Debug)]
struct Level<T> {
    policy: Policy,
    waiting: VecDeque<Entry<T>>,
    delayed: VecDeque<Entry<T>>,
}

/// A request in the queue.
#[derive(Debug)]
pub(crate) struct Entry<T> {
    /// The request.
    pub item: T,
    /// When it came.
    pub queued: Instant,
    /// When it expires; `None` for never and once it is delayed.
    pub deadline: Option<Instant>,
}

/// A place in the queue, counted from the front; see [`PriorityQueue::seek`].
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Cursor {
    level: u64,
    index: usize,
}

impl Cursor {
    /// The place behind this one.
    pub fn next(self) -> Self {
        Self { index: self.index + 1, ..self }
    }
}

impl<T: Item> PriorityQueue<T> {
    /// An empty queue whose levels have `policies`, and `default_policy` where those name none.
    pub fn new(default_policy: Policy, policies: BTreeMap<u64, Policy>) -> Self {
        Self { levels: BTreeMap::new(), policies, default_policy, len: 0, dropped: Vec::new() }
    }

    /// Puts a request at the end of `level`. Returns when it is to be refused for waiting.
    pub fn push(&mut self, level: u64, item: T, now: Instant) -> Result<Option<Instant>, Full<T>> {
        let policy = *self.policies.get(&level).unwrap_or(&self.default_policy);
        let level = self.levels.entry(level).or_insert_with(|| Level {
            policy,
            waiting: VecDeque::new(),
            delayed: VecDeque::new(),
        });
        if policy.queue_len_max != 0 && level.len() >= policy.queue_len_max {
            return Err(Full(item));
        }
        let deadline = policy.timeout(item.timeout_us()).map(|timeout| now + timeout);
        level.waiting.push_back(Entry { item, queued: now, deadline });
        self.len += 1;
        Ok(deadline.filter(|_| policy.timeout_action == TimeoutAction::Reject))
    }

    /// Moves `cursor` to the first request at or behind it that may run at `now`, and drops or delays what
    /// it passes. False at the end of the queue.
    pub fn seek(&mut self, cursor: &mut Cursor, now: Instant) -> bool {
        loop {
            let Some((&key, level)) = self.levels.range_mut(cursor.level..).next() else { return false };
            if key != cursor.level {
                *cursor = Cursor { level: key, index: 0 };
            }
            let before = level.len();
            level.apply_policy(cursor.index, now, &mut self.dropped);
            self.len -= before - level.len();
            if cursor.index < level.len() {
                return true;
            }
            let Some(next) = key.checked_add(1) else { return false };
            *cursor = Cursor { level: next, index: 0 };
        }
    }

    /// The request at a place that [`PriorityQueue::seek`] found.
    pub fn at(&self, cursor: Cursor) -> Option<&Entry<T>> {
        self.levels.get(&cursor.level)?.at(cursor.index)
    }

    /// Takes the first `count` requests.
    pub fn take(&mut self, count: usize) -> Vec<T> {
        let mut items = Vec::with_capacity(count);
        for level in self.levels.values_mut() {
            while items.len() < count {
                let Some(entry) = level.waiting.pop_front().or_else(|| level.delayed.pop_front()) else { break };
                items.push(entry.item);
            }
        }
        self.len -= items.len();
        items
    }

    /// Drops every request that expired by `now` and is to be refused.
    pub fn expire(&mut self, now: Instant) {
        for level in self.levels.values_mut().filter(|level| level.policy.timeout_action == TimeoutAction::Reject) {
            let mut index = 0;
            while index < level.waiting.len() {
                if level.waiting[index].is_expired(now) {
                    self.dropped.extend(level.waiting.remove(index).map(|entry| (entry.item, Dropped::Expired)));
                    self.len -= 1;
                } else {
                    index += 1;
                }
            }
        }
    }

    /// When the next request is to be refused.
    pub fn next_deadline(&self) -> Option<Instant> {
        let rejecting = self.levels.values().filter(|level| level.policy.timeout_action == TimeoutAction::Reject);
        rejecting.flat_map(|level| &level.waiting).filter_map(|entry| entry.deadline).min()
    }

    /// Whether requests can be refused for waiting too long.
    pub fn has_timeouts(&self) -> bool {
        self.policies
            .values()
            .chain([&self.default_policy])
            .any(|policy| policy.timeout_action == TimeoutAction::Reject && !policy.default_timeout.is_zero())
    }

    /// The requests dropped since the last call.
    pub fn take_dropped(&mut self) -> Vec<(T, Dropped)> {
        std::mem::take(&mut self.dropped)
    }

    /// Number of requests.
    pub fn len(&self) -> usize {
        self.len
    }
}

impl<T: Item> Level<T> {
    fn len(&self) -> usize {
        self.waiting.len() + self.delayed.len()
    }

    fn at(&self, index: usize) -> Option<&Entry<T>> {
        self.waiting.get(index).or_else(|| self.delayed.get(index - self.waiting.len()))
    }

    /// Drops or delays requests at `index` until one stands there that may run, or none.
    fn apply_policy(&mut self, index: usize, now: Instant, dropped: &mut Vec<(T, Dropped)>) {
        while let Some(entry) = self.waiting.get(index) {
            let (cancelled, expired) = (entry.item.is_cancelled(), entry.is_expired(now));
            if !cancelled && !expired {
                return;
            }
            let Some(mut entry) = self.waiting.remove(index) else { return };
            if cancelled {
                dropped.push((entry.item, Dropped::Cancelled));
            } else if self.policy.timeout_action == TimeoutAction::Reject {
                dropped.push((entry.item, Dropped::Expired));
            } else {
                entry.deadline = None;
                self.delayed.push_back(entry);
            }
        }
        let index = index - self.waiting.len();
        while self.delayed.get(index).is_some_and(|entry| entry.item.is_cancelled()) {
            dropped.extend(self.delayed.remove(index).map(|entry| (entry.item, Dropped::Cancelled)));
        }
    }
}

impl<T> Entry<T> {
    fn is_expired(&self, now: Instant) -> bool {
        self.deadline.is_some_and(|deadline| now > deadline)
    }
}
