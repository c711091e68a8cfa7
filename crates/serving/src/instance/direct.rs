//! Requests of quick models run on the thread that brings them: to wake an instance's thread and be woken by
//! it takes longer than the model does. The instance is borrowed from its worker while that waits.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use parking_lot::MutexGuard;

use super::runner::{Held, Parked, Shared, State};
use crate::scheduler::Poll;

/// Executions up to this long are run by the thread that brings the request.
const QUICK: Duration = Duration::from_micros(20);

/// Requests that a thread runs for others, which came meanwhile, before it hands them to the workers.
const RUNS_MAX: usize = 8;

/// How long executions take, judged by the slow ones: one slow execution counts for many quick ones.
#[derive(Debug)]
pub(super) struct Pace {
    ns: AtomicU64,
}

impl Default for Pace {
    /// Slow, until the model shows otherwise.
    fn default() -> Self {
        Self { ns: AtomicU64::new(QUICK.as_nanos() as u64 * 4) }
    }
}

impl Pace {
    pub fn record(&self, took: Duration) {
        let took = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        let known = self.ns.load(Relaxed);
        // Executions that are recorded at the same time may overwrite each other: it is an estimate.
        self.ns.store(took.max(known - known / 16), Relaxed);
    }

    /// As if executions took so long.
    #[cfg(test)]
    pub fn set(&self, took: Duration) {
        self.ns.store(took.as_nanos() as u64, Relaxed);
    }

    fn is_quick(&self) -> bool {
        u128::from(self.ns.load(Relaxed)) <= QUICK.as_nanos()
    }
}

impl Shared {
    /// Runs what waits on borrowed instances, as long as the model is quick.
    pub fn run_here<'a>(self: &'a Arc<Self>, mut state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        for _ in 0..RUNS_MAX {
            if !self.pace.is_quick() || state.parked.len() <= state.ready.len() {
                break;
            }
            let Some(index) = state.lendable() else { break };
            let worker = state.parked[index].worker;
            let Poll::Batch(batch) = state.poll(worker, Instant::now()) else { break };
            let Parked { worker, mut held } = state.parked.swap_remove(index);
            MutexGuard::unlocked(&mut state, || self.run(worker, &mut held, batch));
            state.parked.push(Parked { worker, held });
            if state.recalls > 0 {
                self.work.notify_all();
            }
        }
        state
    }

    /// Takes the instance of a worker that was woken back, and waits for it while it is borrowed.
    pub fn reclaim(&self, worker: usize, state: &mut MutexGuard<'_, State>) -> Held {
        loop {
            if let Some(index) = state.parked.iter().position(|parked| parked.worker == worker) {
                // Whoever has an instance looks at the queue, and sets the alarm for what it leaves.
                state.alarm = None;
                return state.parked.swap_remove(index).held;
            }
            self.pass_alarm(state);
            // The work that this one was woken for is for a worker whose instance is there.
            if !state.ready.is_empty() {
                self.work.notify_one();
            }
            state.recalls += 1;
            self.work.wait(state);
            state.recalls -= 1;
        }
    }

    /// A worker without its instance is about to sleep. It may be the one that had to wake for the alarm, or that was to be
    /// woken for it and came by itself: another has to, or who brings an instance back sets the alarm.
    pub fn pass_alarm(&self, state: &mut MutexGuard<'_, State>) {
        if state.parked.is_empty() {
            state.alarm = None;
        } else if state.alarm.is_some() {
            self.work.notify_one();
        }
    }
}

impl State {
    /// An instance that waits and that the next request may run on; `None` where requests wait for company.
    fn lendable(&mut self) -> Option<usize> {
        let State { scheduler, parked, .. } = self;
        if scheduler.is_immediate() {
            return parked.iter().rposition(|parked| parked.held.runs_here());
        }
        let sequences = scheduler.sequences()?;
        parked.iter().position(|parked| parked.held.runs_here() && sequences.has_work(parked.worker))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_is_quick_only_after_many_quick_runs() {
        let pace = Pace::default();
        let runs_until_quick = |took: Duration| {
            (1..1000).find(|_| {
                pace.record(took);
                pace.is_quick()
            })
        };
        assert_eq!(runs_until_quick(QUICK * 2), None);
        assert!(runs_until_quick(QUICK / 4).is_some_and(|runs| runs > 4));
        pace.record(QUICK * 1000);
        assert!(runs_until_quick(QUICK / 4).is_some_and(|runs| runs > 50));
    }
}
