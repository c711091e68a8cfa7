//! The scheduler of models that run one request at a time.

use std::collections::VecDeque;

use super::{Dropped, Item, Poll};

/// First in, first out.
#[derive(Debug)]
pub(crate) struct Fifo<T> {
    queue: VecDeque<T>,
    dropped: Vec<(T, Dropped)>,
}

impl<T: Item> Fifo<T> {
    /// An empty queue.
    pub fn new() -> Self {
        Self { queue: VecDeque::new(), dropped: Vec::new() }
    }

    pub fn push(&mut self, item: T) {
        self.queue.push_back(item);
    }

    pub fn poll(&mut self) -> Poll<T> {
        while let Some(item) = self.queue.pop_front() {
            if item.is_cancelled() {
                self.dropped.push((item, Dropped::Cancelled));
            } else {
                return Poll::Batch(vec![item]);
            }
        }
        Poll::Idle
    }

    pub fn take_dropped(&mut self) -> Vec<(T, Dropped)> {
        std::mem::take(&mut self.dropped)
    }

    pub fn len(&self) -> usize {
        self.queue.len()
    }
}
