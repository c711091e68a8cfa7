use std::{error::Error, hint::black_box, time::Instant};

use halimede_compute::{
    Session,
    tuning::{Bench, Choices, Config, Heat, Part},
};
use halimede_platform::cpu_time;
use halimede_tensor::Value;

use super::super::steady::Probe;

/// What is written before a cold run: some times the second-level cache of any core.
const EVICTED_BYTES: usize = 16 << 20;
/// A warm sample takes at least so long.
const SAMPLE_SECONDS: f64 = 300e-6;

/// Runs a step of a model under configurations.
pub(super) struct SessionBench<'a> {
    part: &'a Part,
    /// What the kernels of the part look up when they are compiled.
    choices: &'a Choices,
    /// Whether the time of the processor counts: what else runs on the machine is not in it.
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

impl<'a> SessionBench<'a> {
    pub(super) fn new(
        part: &'a Part,
        choices: &'a Choices,
        alone: bool,
        best: Probe,
    ) -> Result<SessionBench<'a>, Box<dyn Error>> {
        Ok(SessionBench {
            part,
            choices,
            alone,
            inputs: part.inputs()?,
            sessions: Vec::new(),
            evicted: vec![1; EVICTED_BYTES / size_of::<u64>()],
            best,
            default_seconds: f64::INFINITY,
        })
    }

    /// The machine at its best moment.
    pub(super) fn best(&self) -> Probe {
        self.best
    }

    /// The shortest warm run of the default; infinite where there was none.
    pub(super) fn default_micros(&self) -> f64 {
        self.default_seconds * 1e6
    }

    /// Makes the sessions of a round, and lets go of others: each holds weights of its own.
    fn compile(&mut self, configs: &[Config]) -> Result<(), Box<dyn Error>> {
        self.sessions.retain(|(config, _)| configs.contains(config));
        for config in configs {
            if self.sessions.iter().any(|(known, _)| known == config) {
                continue;
            }
            self.choices.set(self.part.operator(), Some(config.clone()).filter(|config| !config.is_empty()));
            let mut session = self.part.session()?;
            session.run(&self.inputs)?;
            self.sessions.push((config.clone(), session));
        }
        Ok(())
    }

    fn now(&self, start: Instant) -> Result<f64, Box<dyn Error>> {
        Ok(if self.alone { cpu_time::process()?.as_secs_f64() } else { start.elapsed().as_secs_f64() })
    }

    /// Seconds of a run of one of the sessions.
    fn sample(&mut self, index: usize, heat: Heat) -> Result<f64, Box<dyn Error>> {
        let start = Instant::now();
        match heat {
            Heat::Cold => self.evicted.iter_mut().for_each(|number| *number = number.wrapping_add(1)),
            Heat::Warm => self.sessions[index].1.run(&self.inputs)?,
        }
        black_box(&self.evicted);
        let begin = self.now(start)?;
        let mut runs = 0;
        loop {
            self.sessions[index].1.run(&self.inputs)?;
            runs += 1;
            let seconds = self.now(start)? - begin;
            if heat == Heat::Cold || seconds >= SAMPLE_SECONDS {
                // A clock that stands still would make ratios of nothing.
                return Ok((seconds / f64::from(runs)).max(1e-9));
            }
        }
    }
}

impl Bench for SessionBench<'_> {
    /// The slower of the probes before and after.
    type Moment = Probe;
    type Error = Box<dyn Error>;

    fn round(&mut self, configs: &[Config], heat: Heat) -> Result<(Vec<f64>, Probe), Box<dyn Error>> {
        self.compile(configs)?;
        let before = Probe::now();
        let mut all = Vec::with_capacity(configs.len());
        for config in configs {
            let known = self.sessions.iter().position(|(known, _)| known == config);
            let index = known.ok_or("a configuration without a session")?;
            let seconds = self.sample(index, heat)?;
            if config.is_empty() && heat == Heat::Warm {
                self.default_seconds = self.default_seconds.min(seconds);
            }
            all.push(seconds);
        }
        let after = Probe::now();
        self.best = self.best.best(before).best(after);
        Ok((all, before.worst(after)))
    }

    fn is_slow(&self, moment: &Probe) -> bool {
        moment.is_slow(self.best)
    }
}
