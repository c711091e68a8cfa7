//! Refuses requests whose time in the queue is over, also while every instance is busy.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use super::runner::Shared;

/// How late a request may be refused that asks for less time than those before it.
const LATENESS_MAX: Duration = Duration::from_millis(10);

/// Runs until the runner is closed.
pub(super) fn run(shared: &Arc<Shared>) {
    let mut state = shared.state.lock();
    while !state.closed {
        let now = Instant::now();
        state.scheduler.expire(now);
        shared.wake_bound(&mut state);
        let dropped = state.scheduler.take_dropped();
        if !dropped.is_empty() {
            drop(state);
            shared.answer_dropped(dropped);
            state = shared.state.lock();
            continue;
        }
        match state.scheduler.next_deadline() {
            Some(deadline) => {
                let until = (deadline + Duration::from_micros(1)).min(now + LATENESS_MAX);
                shared.expiry.wait_until(&mut state, until);
            }
            None => {
                state.expiry_sleeps = true;
                shared.expiry.wait(&mut state);
                state.expiry_sleeps = false;
            }
        }
    }
}
