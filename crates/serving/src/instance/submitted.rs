//! Batches that run elsewhere, such as in another process. The thread that has one submits it to its instance, and the
//! one that hears of the results answers it and submits the next: no thread waits in between, and none has to be woken.

use std::{
    fmt,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::MutexGuard;

use super::{
    ahead::Away,
    batch::{Batch, Entry},
    runner::{Held, Parked, Shared, State},
};
use crate::{backend::Submit, error::Error, scheduler::Poll};

/// Inputs of more bytes are copied by a thread of an instance: the one that reads requests has others to read. Fewer it
/// copies itself, out of its own caches, in less than a millisecond.
pub(super) const BYTES_MAX: usize = 2 << 20;

/// A batch on its way. Finished, its requests are answered, and its instance takes the next batch.
pub struct Submitted(Option<Flight>);

pub(super) struct Flight {
    pub shared: Arc<Shared>,
    pub worker: usize,
    /// `None` where the instance is [`Away`].
    pub held: Option<Held>,
    pub batch: Batch,
    /// Whether another batch ran when it was submitted.
    pub is_ahead: bool,
}

impl Flight {
    pub fn submitted(self) -> Submitted {
        Submitted(Some(self))
    }
}

impl Submitted {
    /// The batch.
    pub fn batch(&mut self) -> &mut Batch {
        // It is there until the end.
        &mut self.0.as_mut().expect("a batch that is finished").batch
    }

    /// Says, when it ends, how long it ran: one that was submitted ahead waited before. See [`Submit::takes_ahead`].
    pub fn ran_for(&mut self, time: Duration) {
        if let Some(Flight { batch, is_ahead: true, .. }) = &mut self.0 {
            let now = Instant::now();
            batch.begins(now.checked_sub(time).unwrap_or(now));
        }
    }

    /// Answers the requests with what was left in the batch.
    pub fn finish(mut self) {
        self.end();
    }

    /// It never began, and will not: its requests run as the next.
    pub fn give_back(mut self) {
        let Some(Flight { shared, worker, held, batch, .. }) = self.0.take() else { return };
        let entries = batch.into_entries();
        let count = entries.len();
        let mut state = shared.state.lock();
        state.ready.push_front(entries);
        let still_waited = state.away.as_mut().map_or(0, |away| std::mem::take(&mut away.waiting));
        shared.recorder.pending(count as i64 - still_waited as i64);
        // Its worker runs them, and starts what is missing.
        shared.work.notify_all();
        match held {
            Some(held) => state.parked.push(Parked { worker, held }),
            None => shared.land(state),
        }
    }

    fn end(&mut self) {
        let Some(Flight { shared, worker, held, batch, .. }) = self.0.take() else { return };
        match held {
            Some(mut held) => {
                shared.close(worker, &mut held, batch);
                shared.go_on(shared.state.lock(), Parked { worker, held });
            }
            None => {
                // Of an instance that takes batches ahead nothing belongs to requests.
                shared.close(worker, &mut Held::default(), batch);
                shared.land(shared.state.lock());
            }
        }
    }
}

impl Drop for Submitted {
    /// One that nobody finished failed.
    fn drop(&mut self) {
        if let Some(flight) = &mut self.0 {
            flight.batch.fail_all(&Error::internal("the model gave up the request without an answer"));
        }
        self.end();
    }
}

impl fmt::Debug for Submitted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Submitted").field(&self.0.as_ref().map(|flight| &flight.batch)).finish()
    }
}

impl Shared {
    /// Submits what waits to instances that wait, where those take batches so, and the next to one that takes it ahead.
    pub fn submit_waiting<'a>(self: &'a Arc<Self>, mut state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        while !state.is_submitting {
            let Some((index, queue)) = state.submittable() else {
                let Some(entries) = state.next_ahead() else { break };
                if is_large(&entries) {
                    state.ready.push_back(entries);
                    self.work.notify_one();
                    break;
                }
                state = self.submit_away(state, entries);
                continue;
            };
            let worker = state.parked[index].worker;
            let Poll::Batch(entries) = state.poll(worker, Instant::now()) else { break };
            if state.scheduler.sequences().is_none() && is_large(&entries) {
                state.ready.push_back(entries);
                self.work.notify_one();
                continue;
            }
            let Parked { worker, held } = state.parked.swap_remove(index);
            if state.workers == 1 && state.scheduler.is_fifo() && queue.takes_ahead() {
                state.away = Some(Away { worker, held, queue, batches: 0, waiting: 0, bytes: 0 });
                state = self.submit_away(state, entries);
            } else if let Some(held) = MutexGuard::unlocked(&mut state, || self.submit(&*queue, worker, held, entries))
            {
                state.parked.push(Parked { worker, held });
                if state.recalls > 0 {
                    self.work.notify_all();
                }
            }
        }
        state
    }

    /// Submits a batch; the instance comes back where the batch is answered already.
    pub fn submit(
        self: &Arc<Self>,
        queue: &dyn Submit,
        worker: usize,
        mut held: Held,
        entries: Vec<Entry>,
    ) -> Option<Held> {
        let (mut batch, prepared) = self.open(&mut held, entries);
        if let Err(error) = prepared {
            batch.fail_all(&error);
            self.close(worker, &mut held, batch);
            return Some(held);
        }
        let flight = Flight { shared: self.clone(), worker, held: Some(held), batch, is_ahead: false };
        let batch = flight.submitted();
        // After a panic the batch was dropped, and so answered.
        let Ok(Err((mut batch, error))) = catch_unwind(AssertUnwindSafe(|| queue.submit(batch))) else { return None };
        batch.batch().fail_all(&error);
        let Flight { held, batch, .. } = batch.0.take()?;
        let mut held = held?;
        self.close(worker, &mut held, batch);
        Some(held)
    }

    /// What a worker submits `entries` to; `None` where it runs them itself.
    pub fn queue(&self, held: &Held, entries: &[Entry]) -> Option<Arc<dyn Submit>> {
        held.queue().filter(|_| !is_large(entries))
    }

    /// An instance is free again.
    pub fn go_on(self: &Arc<Self>, mut state: MutexGuard<'_, State>, parked: Parked) {
        state.parked.push(parked);
        if state.recalls > 0 {
            self.work.notify_all();
            return;
        }
        self.dispatch(state, Instant::now());
    }
}

impl State {
    /// A waiting instance that a batch can be submitted to, unless others that wait have work to be woken for.
    fn submittable(&mut self) -> Option<(usize, Arc<dyn Submit>)> {
        let State { scheduler, parked, ready, .. } = self;
        if scheduler.len() == 0 || parked.len() <= ready.len() {
            return None;
        }
        let mut sequences = scheduler.sequences();
        let mut has_work = |worker| sequences.as_mut().is_none_or(|sequences| sequences.has_work(worker));
        let mut waiting = parked.iter().enumerate().filter(|(_, parked)| has_work(parked.worker));
        waiting.find_map(|(index, parked)| parked.held.queue().map(|queue| (index, queue)))
    }
}

pub(super) fn is_large(entries: &[Entry]) -> bool {
    bytes_of(entries) > BYTES_MAX
}

/// Bytes of the inputs of requests.
pub(super) fn bytes_of(entries: &[Entry]) -> usize {
    entries.iter().flat_map(|entry| &entry.request.inputs).map(|input| input.data.len()).sum()
}
