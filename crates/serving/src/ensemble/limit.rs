//! How many requests of one step may be under way at once (`max_inflight_requests`), over all requests of the ensemble.

use std::{collections::VecDeque, fmt};

use parking_lot::Mutex;

/// Starts what may be started, and keeps the rest in order. Nobody waits in here.
pub(super) struct Limiter {
    max: usize,
    state: Mutex<State>,
}

struct State {
    under_way: usize,
    waiting: VecDeque<Start>,
    /// Whether a thread starts what waits; the others leave it to that one.
    is_starting: bool,
}

type Start = Box<dyn FnOnce() + Send>;

impl Limiter {
    /// At most `max` under way.
    pub fn new(max: usize) -> Self {
        Self { max, state: Mutex::new(State { under_way: 0, waiting: VecDeque::new(), is_starting: false }) }
    }

    /// Calls `start`, here or later on the thread that leaves. What was started ends with [`Limiter::leave`].
    pub fn enter(&self, start: impl FnOnce() + Send + 'static) {
        self.state.lock().waiting.push_back(Box::new(start));
        self.start_some();
    }

    /// One of those that were started has ended.
    pub fn leave(&self) {
        self.state.lock().under_way -= 1;
        self.start_some();
    }

    /// A request may end while it is started: a loop, so that many such do not nest.
    fn start_some(&self) {
        let mut state = self.state.lock();
        if state.is_starting {
            return;
        }
        state.is_starting = true;
        while state.under_way < self.max
            && let Some(start) = state.waiting.pop_front()
        {
            state.under_way += 1;
            drop(state);
            start();
            state = self.state.lock();
        }
        state.is_starting = false;
    }
}

impl fmt::Debug for Limiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Limiter").field("max", &self.max).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    };

    use super::*;

    #[test]
    fn so_many_are_under_way_and_the_others_follow_in_order() {
        let limiter = Limiter::new(2);
        let started = Arc::<Mutex<Vec<u32>>>::default();
        for i in 0..4 {
            let started = started.clone();
            limiter.enter(move || started.lock().push(i));
        }
        assert_eq!(*started.lock(), [0, 1]);
        limiter.leave();
        assert_eq!(*started.lock(), [0, 1, 2]);
        limiter.leave();
        limiter.leave();
        assert_eq!(*started.lock(), [0, 1, 2, 3]);
    }

    #[test]
    fn what_ends_at_once_makes_room_without_nesting() {
        let limiter = Arc::new(Limiter::new(1));
        let count = Arc::<AtomicUsize>::default();
        limiter.enter(|| {});
        // Deeper than a stack would bear.
        for _ in 0..100_000 {
            let (inner, count) = (limiter.clone(), count.clone());
            limiter.enter(move || {
                count.fetch_add(1, SeqCst);
                inner.leave();
            });
        }
        assert_eq!(count.load(SeqCst), 0);
        limiter.leave();
        assert_eq!(count.load(SeqCst), 100_000);
    }
}
