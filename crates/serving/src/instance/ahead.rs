//! The next batch handed ahead: an instance that runs batches elsewhere finds it there when it ends one, and need not sleep
//! until somebody here has heard of that. Only where waiting would not change what runs next or where: first in, first out,
//! on the only instance.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    time::Instant,
};

use parking_lot::MutexGuard;

use super::{
    batch::Entry,
    runner::{Held, Parked, Shared, State},
    submitted::{Flight, bytes_of},
};
use crate::{
    backend::{LED_BYTES_MAX, Submit},
    scheduler::Poll,
};

/// The only instance of a model that takes a batch ahead. It has one that runs, and may have the next.
pub(super) struct Away {
    pub worker: usize,
    pub held: Held,
    pub queue: Arc<dyn Submit>,
    /// Batches that it has.
    pub batches: usize,
    /// Requests of the one that has not begun.
    pub waiting: usize,
    /// Bytes of the inputs of the last one that it got.
    pub bytes: usize,
}

impl Shared {
    /// Submits a batch to the instance that is away.
    pub fn submit_away<'a>(
        self: &'a Arc<Self>,
        mut state: MutexGuard<'a, State>,
        entries: Vec<Entry>,
    ) -> MutexGuard<'a, State> {
        let Some(away) = &mut state.away else { return state };
        let is_ahead = away.batches > 0;
        away.batches += 1;
        away.bytes = bytes_of(&entries);
        match is_ahead {
            true => away.waiting = entries.len(),
            false => self.recorder.pending(-(entries.len() as i64)),
        }
        let (worker, queue, senders) = (away.worker, away.queue.clone(), away.held.senders().clone());
        state.is_submitting = true;
        MutexGuard::unlocked(&mut state, || {
            let batch = self.batch(&senders, entries);
            let flight = Flight { shared: self.clone(), worker, held: None, batch, is_ahead };
            // After a panic the batch was dropped, and so answered.
            let submitted = catch_unwind(AssertUnwindSafe(|| queue.submit(flight.submitted())));
            if let Ok(Err((mut batch, error))) = submitted {
                batch.batch().fail_all(&error);
                batch.finish();
            }
        });
        state.is_submitting = false;
        state
    }

    /// The instance that is away has a batch less: it is free, or runs the next.
    pub fn land(self: &Arc<Self>, mut state: MutexGuard<'_, State>) {
        let Some(away) = &mut state.away else { return };
        away.batches -= 1;
        self.recorder.pending(-(std::mem::take(&mut away.waiting) as i64));
        match state.away.take_if(|away| away.batches == 0) {
            Some(Away { worker, held, .. }) => self.go_on(state, Parked { worker, held }),
            None => self.dispatch(state, Instant::now()),
        }
    }
}

impl State {
    /// What the instance that is away is to run next, as long as nobody waits to have it back.
    pub fn next_ahead(&mut self) -> Option<Vec<Entry>> {
        let away = self.away.as_ref().filter(|away| away.batches == 1 && away.bytes <= LED_BYTES_MAX)?;
        // With another instance, that may be free earlier.
        let is_alone = self.workers == 1 && self.recalls == 0 && self.ready.is_empty();
        if !is_alone || self.scheduler.len() == 0 || !away.queue.is_ready() {
            return None;
        }
        match self.poll(away.worker, Instant::now()) {
            Poll::Batch(entries) => Some(entries),
            Poll::WaitUntil(_) | Poll::Idle => None,
        }
    }
}
