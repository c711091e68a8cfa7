//! Hands things over in the order of their tickets, whoever brings them when: responses in the order of their requests.

use std::collections::BTreeMap;

use parking_lot::Mutex;

/// Holds things back until all with earlier tickets were handed over.
#[derive(Debug)]
pub(crate) struct Ordering<T>(Mutex<State<T>>);

#[derive(Debug)]
struct State<T> {
    /// The next ticket to give away.
    next: u64,
    /// The next ticket whose thing is to be handed over.
    first: u64,
    held: BTreeMap<u64, T>,
    /// Whether a thread hands over what may be. Others leave theirs to it: it may be the same thread, for what a
    /// response sets off may bring the next one.
    is_sending: bool,
}

impl<T> Default for Ordering<T> {
    fn default() -> Self {
        Self(Mutex::new(State { next: 0, first: 0, held: BTreeMap::new(), is_sending: false }))
    }
}

impl<T> Ordering<T> {
    /// The place of what just came. Whoever counts from 0 without gaps needs no such tickets.
    pub fn take_ticket(&self) -> u64 {
        let mut state = self.0.lock();
        state.next += 1;
        state.next - 1
    }

    /// Gives `item` to `send` once all with earlier tickets were, and then those that waited for it.
    pub fn send(&self, ticket: u64, item: T, mut send: impl FnMut(T)) {
        let mut state = self.0.lock();
        state.held.insert(ticket, item);
        if state.is_sending {
            return;
        }
        while let Some(item) = state.take_first() {
            state.is_sending = true;
            drop(state);
            send(item);
            state = self.0.lock();
            state.is_sending = false;
        }
    }
}

impl<T> State<T> {
    fn take_first(&mut self) -> Option<T> {
        let first = self.held.remove(&self.first)?;
        self.first += 1;
        Some(first)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    #[test]
    fn what_one_sets_off_waits_for_its_turn() {
        let (ordering, sent) = (Ordering::default(), RefCell::new(Vec::new()));
        let send = |item| sent.borrow_mut().push(item);
        ordering.send(2, "third", send);
        // Handing over the first brings the second.
        ordering.send(0, "first", |item| {
            if item == "first" {
                ordering.send(1, "second", |_| panic!("another hands over"));
            }
            send(item);
        });
        assert_eq!(*sent.borrow(), ["first", "second", "third"]);
    }
}
