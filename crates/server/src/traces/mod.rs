//! Traces of requests: which are taken, what is kept of them, and the files that they are written to.
//!
//! A connection asks [`Tracing::sample`] for each request; mostly the answer is no, which costs one load. A request that is
//! traced takes a [`Record`] along, which keeps what happens as plain data. When its last holder lets go of it, it goes to
//! the [`writer::Writer`], a thread that makes text of it and writes the files.

mod context;
mod files;
mod held;
mod otlp;
mod record;
mod render;
mod settings;
mod writer;

use std::{
    collections::BTreeMap,
    sync::{
        Arc, PoisonError, RwLock,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use halimede_serving::{Error, metrics::Family};

use self::{context::Parent, settings::Setting, writer::Writer};
pub(crate) use self::{
    context::TraceHeaders,
    otlp::CollectorFlags,
    record::Record,
    settings::{Change, Changes, Levels, Values},
};
use crate::flags::TraceFlags;

/// The settings for all models and for single ones, and the writer of files.
#[derive(Debug)]
pub(crate) struct Tracing {
    /// Whether any request may be traced.
    is_on: AtomicBool,
    /// What clears a setting of all models.
    defaults: Values,
    state: RwLock<State>,
    ids: Arc<AtomicU64>,
    writer: Arc<Writer>,
}

#[derive(Debug)]
struct State {
    global: Own,
    models: BTreeMap<String, Own>,
}

/// Settings of all models or of one, and which of their values are its own.
#[derive(Debug)]
struct Own {
    setting: Arc<Setting>,
    has_level: bool,
    has_rate: bool,
    has_count: bool,
    has_log_frequency: bool,
}

impl Own {
    fn has_any(&self) -> bool {
        self.has_level || self.has_rate || self.has_count || self.has_log_frequency
    }
}

/// Refuses settings that are to trace and cannot.
fn check(own: &Own) -> Result<(), Error> {
    match own.setting.check() {
        Err(reason) if own.setting.level().is_on() => {
            Err(Error::invalid(format!("Attempting to set invalid trace setting :{reason}")))
        }
        _ => Ok(()),
    }
}

impl Tracing {
    /// # Errors
    /// Traces are to be sent, and the flags name no collector that they could be sent to.
    pub fn new(flags: &TraceFlags) -> Result<Self, String> {
        let collector = if flags.is_sent { Some(Arc::new(flags.collector.collector()?)) } else { None };
        let defaults = Values { collector: collector.clone(), ..flags.values() };
        let writer = Arc::new(Writer::start(collector.as_deref()));
        let setting = Arc::new(Setting::new(defaults.clone(), writer.clone()));
        if let (true, Err(reason)) = (defaults.level.is_on(), setting.check()) {
            tracing::warn!("requests are not traced: {reason}");
        }
        let is_on = AtomicBool::new(setting.may_trace());
        let global = Own { setting, has_level: false, has_rate: false, has_count: false, has_log_frequency: false };
        let state = RwLock::new(State { global, models: BTreeMap::new() });
        Ok(Self { is_on, defaults, state, ids: Arc::new(AtomicU64::new(1)), writer })
    }

    /// A record for a request to `model`, if it is one of those that are traced. `headers` may say to which trace it belongs.
    pub fn sample(&self, model: &str, headers: &impl TraceHeaders) -> Option<Arc<Record>> {
        if !self.is_on.load(Relaxed) {
            return None;
        }
        let state = self.state.read().unwrap_or_else(PoisonError::into_inner);
        let setting = state.models.get(model).map_or(&state.global.setting, |own| &own.setting);
        let parent = if setting.continues() { Parent::of(headers) } else { None };
        let is_traced = setting.sample() || parent.is_some();
        is_traced.then(|| Arc::new(Record::new(setting.clone(), self.ids.clone(), parent)))
    }

    /// The values for a model, or for all.
    pub fn values(&self, model: Option<&str>) -> Values {
        let state = self.state.read().unwrap_or_else(PoisonError::into_inner);
        let own = model.and_then(|model| state.models.get(model)).unwrap_or(&state.global);
        own.setting.values()
    }

    /// Changes the values for a model, or for all: everything or nothing.
    ///
    /// # Errors
    /// Requests would be traced, and could not be with these values.
    pub fn change(&self, model: Option<&str>, changes: &Changes) -> Result<(), Error> {
        let mut state = self.state.write().unwrap_or_else(PoisonError::into_inner);
        match model {
            Some(model) => {
                let own = self.changed(state.models.get(model), &state.global.setting.values(), changes);
                check(&own)?;
                match own.has_any() {
                    true => drop(state.models.insert(model.to_owned(), own)),
                    false => drop(state.models.remove(model)),
                }
            }
            None => {
                let global = self.changed(Some(&state.global), &self.defaults, changes);
                check(&global)?;
                // Models that share some of these values get the new ones.
                let values = global.setting.values();
                let mut models = BTreeMap::new();
                for (model, own) in &state.models {
                    let follows = self.changed(Some(own), &values, &Changes::default());
                    // A model whose own traces are all taken has come to its end, which is no reason to refuse others.
                    if !(own.has_count && follows.setting.is_used_up()) {
                        check(&follows)?;
                    }
                    models.insert(model.clone(), follows);
                }
                *state = State { global, models };
            }
        }
        let mut all = std::iter::once(&state.global).chain(state.models.values());
        self.is_on.store(all.any(|own| own.setting.may_trace()), Relaxed);
        Ok(())
    }

    /// New settings: values are what is changed, else what was one's own, else those of `fallback`.
    fn changed(&self, current: Option<&Own>, fallback: &Values, changes: &Changes) -> Own {
        let current_values = current.map(|own| own.setting.values());
        let old = current_values.as_ref().unwrap_or(fallback);
        let had = |has: fn(&Own) -> bool| current.is_some_and(has);
        let (level, has_level) = changes.level.of(had(|own| own.has_level), old.level, fallback.level);
        let (rate, has_rate) = changes.rate.of(had(|own| own.has_rate), old.rate, fallback.rate);
        let (count, has_count) = changes.count.of(had(|own| own.has_count), old.count, fallback.count);
        let (log_frequency, has_log_frequency) =
            changes.log_frequency.of(had(|own| own.has_log_frequency), old.log_frequency, fallback.log_frequency);
        let (file, collector) = (fallback.file.clone(), fallback.collector.clone());
        let values = Values { level, rate, count, log_frequency, file, collector };
        let setting = Arc::new(Setting::new(values, self.writer.clone()));
        Own { setting, has_level, has_rate, has_count, has_log_frequency }
    }

    /// Counts of traces.
    pub fn metrics(&self) -> Vec<Family> {
        self.writer.metrics()
    }

    /// Traces no more, and waits until what was traced is written.
    pub fn end(&self, timeout: Duration) {
        self.is_on.store(false, Relaxed);
        let mut state = self.state.write().unwrap_or_else(PoisonError::into_inner);
        state.models.clear();
        let off = Values { level: Levels::default(), ..self.defaults.clone() };
        state.global.setting = Arc::new(Setting::new(off, self.writer.clone()));
        drop(state);
        self.writer.end(timeout);
    }
}

#[cfg(test)]
mod tests;
