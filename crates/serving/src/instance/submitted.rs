//! Batches that run elsewhere, such as in another process. The thread that has one submits it to its instance, and the
//! one that hears of the results answers it and submits the next: no thread waits in between, and none has to be woken.

use std::{
    fmt,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    time::Instant,
};

use parking_lot::MutexGuard;

use super::{
    batch::{Batch, Entry},
    runner::{Held, Parked, Shared, State},
};
use crate::{backend::Submit, error::Error, scheduler::Poll};

/// Inputs of so many bytes are copied by a thread of an instance: the one that reads requests has others to read.
pub(super) const BYTES_MAX: usize = 256 << 10;

/// A batch on its way. Finished, its requests are answered, and its instance takes the next batch.
pub struct Submitted(Option<Flight>);

struct Flight {
    shared: Arc<Shared>,
    worker: usize,
    held: Held,
    batch: Batch,
}

impl Submitted {
    /// The batch.
    pub fn batch(&mut self) -> &mut Batch {
        // It is there until the end.
        &mut self.0.as_mut().expect("a batch that is finished").batch
    }

    /// Answers the requests with what was left in the batch.
    pub fn finish(mut self) {
        self.end();
    }

    fn end(&mut self) {
        let Some(Flight { shared, worker, mut held, batch }) = self.0.take() else { return };
        shared.close(worker, &mut held, batch);
        shared.go_on(Parked { worker, held });
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
    /// Submits what waits to instances that wait, where those take batches so.
    pub fn submit_waiting<'a>(self: &Arc<Self>, mut state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        while let Some((index, queue)) = state.submittable() {
            let worker = state.parked[index].worker;
            let Poll::Batch(entries) = state.poll(worker, Instant::now()) else { break };
            if state.scheduler.sequences().is_none() && is_large(&entries) {
                state.ready.push_back(entries);
                self.work.notify_one();
                continue;
            }
            let Parked { worker, held } = state.parked.swap_remove(index);
            if let Some(held) = MutexGuard::unlocked(&mut state, || self.submit(&*queue, worker, held, entries)) {
                state.parked.push(Parked { worker, held });
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
        let batch = Submitted(Some(Flight { shared: self.clone(), worker, held, batch }));
        // After a panic the batch was dropped, and so answered.
        let Ok(Err((mut batch, error))) = catch_unwind(AssertUnwindSafe(|| queue.submit(batch))) else { return None };
        batch.batch().fail_all(&error);
        let Flight { mut held, batch, .. } = batch.0.take()?;
        self.close(worker, &mut held, batch);
        Some(held)
    }

    /// What a worker submits `entries` to; `None` where it runs them itself.
    pub fn queue(&self, held: &Held, entries: &[Entry]) -> Option<Arc<dyn Submit>> {
        held.queue().filter(|_| !is_large(entries))
    }

    /// An instance is free again.
    fn go_on(self: &Arc<Self>, parked: Parked) {
        let mut state = self.state.lock();
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

fn is_large(entries: &[Entry]) -> bool {
    entries.iter().flat_map(|entry| &entry.request.inputs).map(|input| input.data.len()).sum::<usize>() > BYTES_MAX
}
