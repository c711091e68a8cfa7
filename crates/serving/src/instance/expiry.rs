//! Refuses requests whose time in the queue is over, also while every instance is busy.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use super::runner::{ExpirySleep, Shared};

/// Runs until the runner is closed. It sleeps until the next request expires; who brings one that expires earlier wakes
/// it.
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
        match state.scheduler.next_deadline(now) {
            Some(deadline) => {
                let until = deadline + Duration::from_micros(1);
                state.expiry_sleep = ExpirySleep::Until(until);
                shared.expiry.wait_until(&mut state, until);
            }
            None => {
                state.expiry_sleep = ExpirySleep::Long;
                shared.expiry.wait(&mut state);
            }
        }
        state.expiry_sleep = ExpirySleep::Awake;
    }
}
