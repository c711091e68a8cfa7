//! How fast operators run, seen in a run now and then.

use super::shapes::Descs;
use crate::backend::OperatorWork;
use halimede_compute::{Session, TensorDesc};
use halimede_graph::ops::Factors;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// From one measured run to the next, at least: what is measured costs some microseconds.
const INTERVAL: Duration = Duration::from_secs(1);

/// Different shapes of inputs that are remembered.
const SHAPES_MAX: usize = 16;

/// Measures one run a second of all sessions of a model.
pub(super) struct Sampler {
    started: Instant,
    /// Nanoseconds after the start from which on the next run is measured.
    next: AtomicU64,
    work: Mutex<BTreeMap<(String, &'static str), OperatorWork>>,
    /// Inputs of runs that were measured, each once.
    shapes: Mutex<Vec<Descs>>,
}

impl Sampler {
    pub fn new() -> Self {
        Self { started: Instant::now(), next: AtomicU64::new(0), work: Mutex::default(), shapes: Mutex::default() }
    }

    /// Whether the run that is about to begin in `session` is to be measured. Its first one never is: memory is
    /// touched for the first time.
    pub fn takes(&self, session: &Session) -> bool {
        let coverage = session.coverage();
        let now = nanoseconds(self.started.elapsed());
        let next = self.next.load(Ordering::Relaxed);
        let after = now.saturating_add(nanoseconds(INTERVAL));
        coverage.kernels + coverage.reference > 0
            && now >= next
            && self.next.compare_exchange(next, after, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }

    /// Counts the run of a session that was measured. Steps whose work depends on data are left out.
    pub fn add(&self, session: &Session) {
        self.add_shapes(session.input_descs());
        let steps = session.steps();
        let mut work = self.work.lock();
        for measured in session.times() {
            let Some(step) = steps.get(measured.step) else { continue };
            let Some(cost) = &step.cost else { continue };
            let factors = factors_name(step.multiply);
            let sum = work.entry((step.operator.clone(), factors)).or_insert_with(|| OperatorWork {
                operator: step.operator.clone(),
                factors,
                time: Duration::ZERO,
                operations: 0.0,
                bytes: 0.0,
            });
            sum.time += measured.time;
            sum.operations += cost.operations;
            sum.bytes += cost.bytes;
        }
    }

    /// Those that come often are met first.
    fn add_shapes(&self, descs: &[Option<TensorDesc>]) {
        let Some(descs) = descs.iter().cloned().collect::<Option<Descs>>() else { return };
        let mut shapes = self.shapes.lock();
        if shapes.len() < SHAPES_MAX && !shapes.contains(&descs) {
            shapes.push(descs);
        }
    }

    /// Datatypes and shapes of the inputs of runs that were measured; none of strings.
    pub fn shapes(&self) -> Vec<Descs> {
        self.shapes.lock().clone()
    }

    /// The sums of all runs that were measured.
    pub fn work(&self) -> Vec<OperatorWork> {
        self.work.lock().values().cloned().collect()
    }
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

fn factors_name(factors: Option<Factors>) -> &'static str {
    match factors {
        Some(Factors::Bf16) => "bf16",
        Some(Factors::F16) => "f16",
        Some(Factors::Integers) => "int8",
        None => "as stored",
    }
}
