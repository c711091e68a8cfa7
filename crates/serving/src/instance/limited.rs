//! Instances that run only when the rate limiter lets them.
//!
//! A batch is formed as late as possible, when the instance may run: until then requests join it. Requests of sequences
//! are bound to their instance, which takes them first and then asks.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    time::Instant,
};

use parking_lot::MutexGuard;

use super::{
    batch::Entry,
    runner::{Shared, State},
};
use crate::{
    config::proto::ModelRateLimiter,
    error::Error,
    rate_limiter::{Place, RateLimiter},
    scheduler::Poll,
};

/// An instance and its place in the limiter.
pub(super) struct Limited {
    worker: usize,
    place: Place,
    /// Whether it ran since it was given its turn.
    has_run: bool,
    has_asked: bool,
    /// Requests that run next, whatever happens.
    in_hand: Option<Vec<Entry>>,
    /// The arrivals at which it found nothing to run, and when to look again all the same.
    seen: Option<(u64, Option<Instant>)>,
}

impl Shared {
    /// A place in the limiter for an instance with `config`.
    pub fn join(
        self: &Arc<Self>,
        limiter: &Arc<RateLimiter>,
        config: Option<&ModelRateLimiter>,
    ) -> Result<Place, Error> {
        let shared = Arc::downgrade(self);
        limiter.join(config.unwrap_or(&ModelRateLimiter::default()), move || {
            if let Some(shared) = shared.upgrade() {
                // Whoever is about to wait has looked before, or looks after this.
                drop(shared.state.lock());
                shared.work.notify_all();
            }
        })
    }

    /// Waits for a batch that may run; `None` when the thread is to end.
    pub fn next_limited(&self, limited: &mut Limited, quit: &AtomicBool) -> Option<Vec<Entry>> {
        let worker = limited.worker;
        let mut state = self.state.lock();
        loop {
            let now = Instant::now();
            let is_bound = state.scheduler.sequences().is_some();
            let may_run = limited.place.may_run();
            if limited.may_quit(&mut state, quit) {
                // Work meant for this instance goes to another.
                self.work.notify_all();
                return None;
            }
            // What is bound is taken before its turn, the rest in its turn.
            let takes = if is_bound { limited.in_hand.is_none() } else { may_run && !limited.has_run };
            let mut is_over = false;
            if takes {
                let poll = state.poll(worker, now);
                let dropped = state.scheduler.take_dropped();
                let has_dropped = !dropped.is_empty();
                if has_dropped {
                    MutexGuard::unlocked(&mut state, || self.answer_dropped(dropped));
                }
                match poll {
                    Poll::Batch(batch) => limited.in_hand = Some(batch),
                    _ if has_dropped => continue,
                    Poll::Idle => {
                        is_over = state.closed && state.scheduler.len() == 0;
                        limited.seen = Some((state.arrivals, None));
                    }
                    Poll::WaitUntil(until) => limited.seen = Some((state.arrivals, Some(until))),
                }
            }
            if may_run && !limited.has_run && limited.in_hand.is_some() {
                limited.has_run = true;
                limited.has_asked = false;
                limited.seen = None;
                return limited.in_hand.take();
            }
            let asks = match is_bound {
                true => limited.in_hand.is_some(),
                false => limited.wants_a_look(&state, now),
            };
            if may_run {
                // Its next turn is asked for before others are given theirs.
                MutexGuard::unlocked(&mut state, || limited.give_back(asks));
                continue;
            }
            if asks && !limited.has_asked {
                limited.has_asked = true;
                MutexGuard::unlocked(&mut state, || limited.place.ask());
                continue;
            }
            if is_over || (state.closed && !is_bound && state.scheduler.len() == 0) {
                // Others may wait for the end of the last sequence.
                self.work.notify_all();
                return None;
            }
            // Its last sequence may have ended when it was looked for work.
            if limited.may_quit(&mut state, quit) {
                continue;
            }
            match limited.seen {
                Some((_, Some(until))) if !limited.has_asked => {
                    self.work.wait_until(&mut state, until);
                }
                _ => self.work.wait(&mut state),
            }
        }
    }
}

impl Limited {
    pub fn new(worker: usize, place: Place) -> Self {
        Self { worker, place, has_run: false, has_asked: false, in_hand: None, seen: None }
    }

    /// Whether it is to go, and has nothing left to do.
    fn may_quit(&self, state: &mut State, quit: &AtomicBool) -> bool {
        quit.load(SeqCst)
            && self.in_hand.is_none()
            && state.scheduler.sequences().is_none_or(|sequences| sequences.is_gone(self.worker))
    }

    /// Whether something may have come to run since it was last looked for.
    fn wants_a_look(&self, state: &State, now: Instant) -> bool {
        let is_new = match self.seen {
            None => true,
            Some((arrivals, until)) => arrivals != state.arrivals || until.is_some_and(|until| now >= until),
        };
        is_new && state.scheduler.len() > 0
    }

    fn give_back(&mut self, asks: bool) {
        self.place.give_back(self.has_run, asks);
        self.has_run = false;
        self.has_asked = asks;
    }
}
