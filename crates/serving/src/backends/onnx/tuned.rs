//! A model that is tuned while it serves.

use std::{
    collections::BTreeSet,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, Weak, mpsc},
    time::{Duration, Instant},
};

use halimede_compute::{
    CompileOptions, ComputeUnit, RunError, Session, TensorDesc, made_up_inputs,
    packed::Packer,
    tuning::{
        Agenda, BenchError, Choices, CostModelTopK, Effort, Operator, Part, PartBench, Probe, Quiet, Stopped, Strategy,
        Winner, search,
    },
};
use halimede_tensor::Value;
use parking_lot::Mutex;

use super::{
    activity::{Activity, Calm, Clock, Monotonic},
    recipe::Recipe,
    served::Served,
    shapes::Descs,
    tuner::{Subject, Tuning},
    units::{Units, Wish},
    worker::Worker,
};
use crate::backend::TuningWork;

/// Candidates of an operator that the cost model may choose.
const CANDIDATES: usize = 12;

/// Sets of input shapes for which a model is tuned, at most.
const SHAPES_MAX: usize = 8;

/// A model is given up after so many times what may be spent on measuring it: requests leave no moment for that.
const PATIENCE: u32 = 10;

/// A run of a whole model, by which its operators are put in order, may take so long.
const RUN_MAX: Duration = Duration::from_secs(60);

/// What is told of the tuning of a model.
#[derive(Debug, Default)]
pub(super) struct Progress(Mutex<TuningWork>);

impl Progress {
    /// A model that waits to be tuned.
    pub fn waiting() -> Self {
        Self(Mutex::new(TuningWork { is_active: true, ..TuningWork::default() }))
    }

    /// As it is now.
    pub fn now(&self) -> TuningWork {
        *self.0.lock()
    }

    fn change(&self, change: impl FnOnce(&mut TuningWork)) {
        change(&mut self.0.lock());
    }
}

/// What all models of a server share.
pub(super) struct Shared {
    pub tuning: Tuning,
    pub units: Arc<Units>,
    pub activity: Arc<Activity>,
    pub worker: Arc<Worker>,
}

/// A model with its place in the tuning of a server.
pub(super) struct TunedModel {
    pub shared: Arc<Shared>,
    pub recipe: Arc<Recipe>,
    pub served: Weak<Served>,
    pub wish: Wish,
    /// What it was compiled for, and by which options.
    pub unit: Arc<dyn ComputeUnit>,
    pub options: CompileOptions,
    /// The shapes that its configuration names.
    pub configured: Vec<Descs>,
    pub progress: Arc<Progress>,
    pub left: Left,
}

/// What is left to do, and to spend.
pub(super) struct Left {
    /// Shapes that were looked at.
    seen: Vec<Descs>,
    /// Of the time to measure in.
    budget: Duration,
    /// Of the time altogether.
    patience: Duration,
}

impl Left {
    /// Everything.
    pub fn all(tuning: &Tuning) -> Self {
        Self { seen: Vec::new(), budget: tuning.budget, patience: tuning.budget * PATIENCE }
    }
}

/// What came of the operators of some shapes.
#[derive(Default)]
struct Outcome {
    tuned: usize,
    /// In the order in which they were found.
    won: Vec<(Operator, Winner)>,
    /// Why some are left, where that has a reason.
    given_up: Option<String>,
}

impl TunedModel {
    /// Shapes that are configured or have come in, and were not looked at.
    fn new_shapes(&mut self) -> Vec<Descs> {
        let Some(served) = self.served.upgrade() else { return Vec::new() };
        let came = served.sampler().shapes();
        let room = SHAPES_MAX - self.left.seen.len();
        let mut new: Vec<Descs> = Vec::new();
        for descs in self.configured.iter().chain(&came) {
            if new.len() < room && !self.left.seen.contains(descs) && !new.contains(descs) {
                new.push(descs.clone());
            }
        }
        self.left.seen.extend(new.iter().cloned());
        new
    }

    /// What can be chosen about the model in these shapes and nobody knows yet, with the time that it takes.
    fn agenda(&self, shapes: &[Descs], choices: &Arc<Choices>, calm: &dyn Quiet) -> Result<Agenda<Part>, BenchError> {
        let Some(served) = self.served.upgrade() else { return Err(Stopped.into()) };
        let model = served.model();
        drop(served);
        calm.wait()?;
        let unit = self.unit.tuned(choices.clone());
        // What is served may go, if its model does.
        let model = {
            let served = model;
            served.repacked(unit.as_ref(), &self.options, &Packer::default())?
        };
        let mut all: Vec<(Part, Duration)> = Vec::new();
        for descs in shapes {
            let parts = match made_up_inputs(descs) {
                Ok(inputs) => timed(&mut model.session(), &inputs, calm)?.map_err(|error| error.to_string()),
                Err(error) => Err(error.to_string()),
            };
            match parts {
                Ok(parts) => all.extend(parts),
                // Made-up numbers need not be such that a model has an answer.
                Err(reason) => tracing::debug!(
                    "model '{}' is not tuned for inputs of {}: {reason}",
                    self.recipe.name,
                    listed(descs)
                ),
            }
        }
        let mut operators = BTreeSet::new();
        // One operator occurs in several shapes of inputs, and others have been looked at for other models.
        all.retain(|(part, _)| {
            operators.insert(part.operator().to_string()) && self.shared.units.known(part.operator()).is_none()
        });
        Ok(Agenda::new(all))
    }

    fn tune_shapes(&mut self, shapes: &[Descs], clock: &impl Clock) -> Outcome {
        let mut outcome = Outcome::default();
        let begin = clock.now();
        let (served, activity) = (self.served.clone(), self.shared.activity.clone());
        let is_wanted = || served.strong_count() > 0;
        let calm = Calm::new(&activity, clock, &is_wanted, begin + self.left.patience);
        let result = self.work_through(shapes, &calm, &mut outcome);
        self.left.patience = self.left.patience.saturating_sub(clock.now() - begin);
        // The weights have been read again, from the file.
        self.recipe.files.release();
        outcome.given_up = match result {
            Ok(0) => None,
            Ok(_) if !self.recipe.files.are_unchanged() => Some("its file has changed since it was loaded".to_owned()),
            Ok(left) => Some(format!("its time is over, and {left} operators are left as they are")),
            // It is gone.
            Err(BenchError::Stopped(_)) if !is_wanted() => None,
            Err(BenchError::Stopped(_)) => Some("requests leave no time for it".to_owned()),
            Err(error) => Some(error.to_string()),
        };
        outcome
    }

    /// Measures one operator after the other. Gives the number of those that are left when the time is over.
    fn work_through<C: Clock>(
        &mut self,
        shapes: &[Descs],
        calm: &Calm<'_, C>,
        outcome: &mut Outcome,
    ) -> Result<usize, BenchError> {
        let choices = Arc::new(Choices::default());
        let mut agenda = self.agenda(shapes, &choices, calm)?;
        if !agenda.is_empty() {
            let (name, count) = (&self.recipe.name, agenda.len());
            tracing::info!("model '{name}' is tuned while it serves: {count} operators are to be measured");
        }
        let tuning = &self.shared.tuning;
        let strategy: &dyn Strategy = &CostModelTopK { count: CANDIDATES };
        let mut machine: Option<Probe> = None;
        while !self.left.budget.is_zero() && self.recipe.files.are_unchanged() {
            self.progress.change(|work| work.waiting = agenda.len());
            let Some((part, share)) = agenda.next(self.left.budget) else { return Ok(0) };
            calm.wait()?;
            let (begin, waited) = (calm.clock.now(), calm.waited());
            // Waiting takes nothing from what may be spent on measuring.
            let spent = || (calm.clock.now() - begin).saturating_sub(calm.waited() - waited);
            let best = *machine.get_or_insert_with(tuning.probe);
            let measured = PartBench::new(&part, &choices, calm, tuning.probe, best).and_then(|mut bench| {
                let is_over = || spent() >= share;
                let found = search(&part.tunable, strategy, &mut bench, &Effort::default(), &is_over);
                machine = Some(bench.best());
                Ok((found?, bench.best()))
            });
            let spent = spent();
            self.left.budget = self.left.budget.saturating_sub(spent);
            self.progress.change(|work| work.time += spent);
            let (mut found, speed) = match measured {
                Ok(measured) => measured,
                Err(error @ (BenchError::Stopped(_) | BenchError::Clock(_))) => return Err(error),
                // The others may do.
                Err(error) => {
                    tracing::debug!("{} of model '{}' is not tuned: {error}", part.operator(), self.recipe.name);
                    continue;
                }
            };
            let before = self.shared.units.known(part.operator());
            match (tuning.remember)(part.operator(), &found, before, speed) {
                Ok(Some(config)) => self.shared.units.note(part.operator(), config),
                Ok(None) => {}
                Err(error) => {
                    tracing::warn!("what was tuned of model '{}' is not remembered: {error}", self.recipe.name);
                    // It is not served either.
                    found.winner = None;
                }
            }
            outcome.tuned += 1;
            self.progress.change(|work| {
                work.tuned += 1;
                work.won += usize::from(found.winner.is_some());
            });
            outcome.won.extend(found.winner.map(|winner| (part.operator().clone(), winner)));
        }
        Ok(agenda.len())
    }

    /// Tunes what has come up; a panic ends the tuning of this model alone.
    fn tune_new(&mut self) -> bool {
        let shapes = match self.left.budget.is_zero() || self.left.patience.is_zero() {
            true => Vec::new(),
            false => self.new_shapes(),
        };
        if shapes.is_empty() {
            self.progress.change(|work| work.is_active = false);
            return false;
        }
        self.progress.change(|work| work.is_active = true);
        let clock = Monotonic::new();
        let outcome = self.tune_shapes(&shapes, &clock);
        self.report(&outcome, clock.now());
        let won = !outcome.won.is_empty();
        // Where something was won, its last part is still to come.
        self.progress.change(|work| (work.waiting, work.is_active) = (0, won));
        won
    }

    fn report(&self, outcome: &Outcome, time: Duration) {
        let (name, won) = (&self.recipe.name, outcome.won.len());
        if let Some(reason) = &outcome.given_up {
            tracing::info!("model '{name}' is not tuned to the end: {reason}");
        }
        if outcome.tuned > 0 {
            let (tuned, seconds) = (outcome.tuned, time.as_secs_f64());
            let each = |(operator, winner): &(Operator, Winner)| {
                format!("{operator}: {} ({:.2} times as fast)", winner.config, winner.gain())
            };
            let each: String = outcome.won.iter().map(|won| format!("; {}", each(won))).collect();
            tracing::info!("model '{name}': {tuned} operators measured in {seconds:.1} s, {won} are faster now{each}");
        }
    }
}

impl Subject for TunedModel {
    fn is_alive(&self) -> bool {
        self.served.strong_count() > 0
    }

    fn tune(&mut self) -> bool {
        catch_unwind(AssertUnwindSafe(|| self.tune_new())).unwrap_or_else(|_| {
            tracing::warn!("model '{}' is not tuned any more: measuring it panicked", self.recipe.name);
            self.left.budget = Duration::ZERO;
            self.progress.change(|work| (work.waiting, work.is_active) = (0, false));
            false
        })
    }

    fn renew(&mut self) {
        self.shared.units.renew();
        let unit = self.shared.units.get(self.wish).ok().filter(|unit| !Arc::ptr_eq(unit, &self.unit));
        if let Some(unit) = unit {
            // Not as slowly as this thread works: somebody may wait for what it holds.
            let (recipe, served, told) = (self.recipe.clone(), self.served.clone(), unit.clone());
            let (sender, done) = mpsc::channel();
            self.shared.worker.add(move || {
                let _ = sender.send(recipe.renew(&served, &told));
            });
            // Without an answer there is no worker, or it panicked, and it said so. What did not do is not tried again.
            self.unit = unit;
            if let Ok(Some(options)) = done.recv() {
                tracing::info!("model '{}' runs with what was tuned", self.recipe.name);
                self.options = options;
            }
        }
        self.progress.change(|work| work.is_active = false);
    }
}

/// What can be chosen about a model, with the time that it takes, from runs that no request disturbed. The inner error is
/// of the run.
fn timed(
    session: &mut Session,
    inputs: &[Value],
    calm: &dyn Quiet,
) -> Result<Result<Vec<(Part, Duration)>, RunError>, Stopped> {
    loop {
        calm.wait()?;
        let begin = Instant::now();
        let is_cancelled = || calm.is_disturbed() || begin.elapsed() >= RUN_MAX;
        match session.timed_parts(inputs, &is_cancelled) {
            Err(RunError::Cancelled) if begin.elapsed() < RUN_MAX => {}
            made => return Ok(made),
        }
    }
}

/// Shapes as people read them.
fn listed(descs: &[TensorDesc]) -> String {
    descs.iter().map(|desc| format!("{}{:?}", desc.dtype, desc.shape.as_slice())).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
#[path = "tuned_tests.rs"]
mod tests;
