//! Sequences that wait for a place.

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use super::super::Item;

/// Sequences in order of arrival.
#[derive(Debug)]
pub(super) struct Backlog<T> {
    waiting: VecDeque<Waiting<T>>,
    next: u64,
}

/// What came of a sequence.
#[derive(Debug)]
pub(super) struct Waiting<T> {
    number: u64,
    /// With the time at which each came. Never empty.
    pub items: VecDeque<(T, Instant)>,
    /// When the first of the requests does not want to wait any longer.
    deadline: Option<Instant>,
}

impl<T> Default for Backlog<T> {
    fn default() -> Self {
        Self { waiting: VecDeque::new(), next: 0 }
    }
}

impl<T: Item> Backlog<T> {
    /// A new entry at the end, for the request that is pushed next. Returns its number.
    pub fn add(&mut self) -> u64 {
        let number = self.next;
        self.next += 1;
        self.waiting.push_back(Waiting { number, items: VecDeque::new(), deadline: None });
        number
    }

    /// Puts a request behind the others of its sequence. Returns when the sequence has waited too long.
    pub fn push(&mut self, number: u64, item: T, now: Instant) -> Option<Instant> {
        // Numbers grow from front to back.
        let index = self.waiting.binary_search_by_key(&number, |waiting| waiting.number).ok()?;
        let waiting = &mut self.waiting[index];
        if item.timeout_us() != 0 {
            let deadline = now.checked_add(Duration::from_micros(item.timeout_us()));
            waiting.deadline = waiting.deadline.into_iter().chain(deadline).min();
        }
        waiting.items.push_back((item, now));
        waiting.deadline
    }

    /// The sequence that came first.
    pub fn pop(&mut self) -> Option<Waiting<T>> {
        self.waiting.pop_front()
    }

    /// Takes the sequences out that waited too long by `now`.
    pub fn take_expired(&mut self, now: Instant) -> VecDeque<Waiting<T>> {
        self.take(|waiting| waiting.deadline.is_some_and(|deadline| deadline <= now))
    }

    /// Takes the sequences out of which a request is cancelled.
    pub fn take_cancelled(&mut self) -> VecDeque<Waiting<T>> {
        self.take(|waiting| waiting.items.iter().any(|(item, _)| item.is_cancelled()))
    }

    fn take(&mut self, is_wanted: impl Fn(&Waiting<T>) -> bool) -> VecDeque<Waiting<T>> {
        if !self.waiting.iter().any(&is_wanted) {
            return VecDeque::new();
        }
        let (taken, left) = self.waiting.drain(..).partition(is_wanted);
        self.waiting = left;
        taken
    }

    /// When the next sequence has waited too long.
    pub fn next_deadline(&self) -> Option<Instant> {
        self.waiting.iter().filter_map(|waiting| waiting.deadline).min()
    }

    /// Requests that wait.
    pub fn len(&self) -> usize {
        self.waiting.iter().map(|waiting| waiting.items.len()).sum()
    }

    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }
}
