use std::{hint::black_box, time::Instant};

use halimede_platform::cpu_time;
use halimede_tensor::{TensorError, Value};

use super::{Bench, Choices, Config, Heat, Part, Probe};
use crate::{CompileError, RunError, Session};

/// What is written before a cold run: some times the second-level cache of any core.
const EVICTED_BYTES: usize = 16 << 20;
/// A warm sample takes at least so long.
const SAMPLE_SECONDS: f64 = 300e-6;

/// The other work of this process: while there is any, samples would be of that as well, and it would wait for them.
pub trait Quiet {
    /// Waits until there is none.
    ///
    /// # Errors
    /// Nobody wants to measure any more.
    fn wait(&self) -> Result<(), Stopped>;

    /// Whether there was any since the last wait. Asked after every run: it should be cheap.
    fn is_disturbed(&self) -> bool;
}

/// Nobody wants to measure any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("measuring was given up")]
pub struct Stopped;

/// A process that does nothing but measure.
#[derive(Debug, Clone, Copy)]
pub struct NothingElse;

impl Quiet for NothingElse {
    fn wait(&self) -> Result<(), Stopped> {
        Ok(())
    }

    fn is_disturbed(&self) -> bool {
        false
    }
}

/// Why a part of a model could not be measured.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// It could not be compiled under a configuration.
    #[error(transparent)]
    Compile(#[from] CompileError),
    /// It failed.
    #[error(transparent)]
    Run(#[from] RunError),
    /// There is no memory for inputs.
    #[error(transparent)]
    Tensor(#[from] TensorError),
    /// The system does not tell the processor time.
    #[error(transparent)]
    Clock(#[from] halimede_platform::Error),
    /// Nobody waits for it.
    #[error(transparent)]
    Stopped(#[from] Stopped),
}

/// Runs a step of a model under configurations, while nothing else runs.
pub struct PartBench<'a> {
    part: &'a Part,
    /// What the kernels of the part look up when they are compiled.
    choices: &'a Choices,
    quiet: &'a dyn Quiet,
    probe: fn() -> Probe,
    /// Whether the calling thread computes alone: then its processor time counts, in which nothing else is.
    alone: bool,
    inputs: Vec<Value>,
    /// Those of the last round.
    sessions: Vec<(Config, Session)>,
    evicted: Vec<u64>,
    /// The machine at its best moment.
    best: Probe,
    /// The shortest warm run of the default.
    default_seconds: f64,
}

impl<'a> PartBench<'a> {
    /// `part` is one of a model whose unit was made with `choices`, `best` what `probe` said at the best moment so far.
    pub fn new(
        part: &'a Part,
        choices: &'a Choices,
        quiet: &'a dyn Quiet,
        probe: fn() -> Probe,
        best: Probe,
    ) -> Result<PartBench<'a>, BenchError> {
        Ok(PartBench {
            part,
            choices,
            quiet,
            probe,
            alone: part.operator().threads == 1,
            inputs: part.inputs()?,
            sessions: Vec::new(),
            evicted: vec![1; EVICTED_BYTES / size_of::<u64>()],
            best,
            default_seconds: f64::INFINITY,
        })
    }

    /// The machine at its best moment.
    pub fn best(&self) -> Probe {
        self.best
    }

    /// The shortest warm run of the default; infinite where there was none.
    pub fn default_micros(&self) -> f64 {
        self.default_seconds * 1e6
    }

    /// Makes the sessions of a round, and lets go of others: each holds weights of its own.
    fn compile(&mut self, configs: &[Config]) -> Result<(), BenchError> {
        self.sessions.retain(|(config, _)| configs.contains(config));
        for config in configs {
            if self.sessions.iter().any(|(known, _)| known == config) {
                continue;
            }
            self.quiet.wait()?;
            self.choices.set(self.part.operator(), Some(config.clone()).filter(|config| !config.is_empty()));
            let mut session = self.part.session()?;
            session.run(&self.inputs)?;
            self.sessions.push((config.clone(), session));
        }
        Ok(())
    }

    /// A round, unless something else ran meanwhile.
    fn undisturbed(&mut self, configs: &[Config], heat: Heat) -> Result<Option<(Vec<f64>, Probe)>, BenchError> {
        let before = (self.probe)();
        let mut default_seconds = self.default_seconds;
        let mut all = Vec::with_capacity(configs.len());
        for config in configs {
            let Some(index) = self.sessions.iter().position(|(known, _)| known == config) else { continue };
            let Some(seconds) = self.sample(index, heat)? else { return Ok(None) };
            if config.is_empty() && heat == Heat::Warm {
                default_seconds = default_seconds.min(seconds);
            }
            all.push(seconds);
        }
        let after = (self.probe)();
        if self.quiet.is_disturbed() {
            return Ok(None);
        }
        self.default_seconds = default_seconds;
        self.best = self.best.best(before).best(after);
        Ok(Some((all, before.worst(after))))
    }

    /// Seconds of a run of one of the sessions; `None` as soon as something else runs.
    fn sample(&mut self, index: usize, heat: Heat) -> Result<Option<f64>, BenchError> {
        let start = Instant::now();
        match heat {
            Heat::Cold => self.evicted.iter_mut().for_each(|number| *number = number.wrapping_add(1)),
            Heat::Warm => self.sessions[index].1.run(&self.inputs)?,
        }
        black_box(&self.evicted);
        let begin = self.now(start)?;
        let mut runs = 0;
        while !self.quiet.is_disturbed() {
            self.sessions[index].1.run(&self.inputs)?;
            runs += 1;
            let seconds = self.now(start)? - begin;
            if heat == Heat::Cold || seconds >= SAMPLE_SECONDS {
                // A clock that stands still would make ratios of nothing.
                return Ok(Some((seconds / f64::from(runs)).max(1e-9)));
            }
        }
        Ok(None)
    }

    fn now(&self, start: Instant) -> Result<f64, BenchError> {
        Ok(if self.alone { cpu_time::thread()?.as_secs_f64() } else { start.elapsed().as_secs_f64() })
    }
}

impl Bench for PartBench<'_> {
    /// The slower of the probes before and after.
    type Moment = Probe;
    type Error = BenchError;

    fn round(&mut self, configs: &[Config], heat: Heat) -> Result<(Vec<f64>, Probe), BenchError> {
        self.compile(configs)?;
        loop {
            self.quiet.wait()?;
            if let Some(round) = self.undisturbed(configs, heat)? {
                return Ok(round);
            }
        }
    }

    fn is_slow(&self, moment: &Probe) -> bool {
        moment.is_slow(self.best)
    }
}

impl Drop for PartBench<'_> {
    /// The kernel of the part does what it does by itself again.
    fn drop(&mut self) {
        self.choices.set(self.part.operator(), None);
    }
}
