//! The model repository: what lies in it, what is loaded, and the way from one to the other.
//!
//! [`poll`] looks at the repositories, [`source`] reads what they say about a model, [`graph`] knows which ensembles use it,
//! [`lifecycle`] loads and replaces its versions, and [`table`] is what requests look models up in.
//! Changes of the same models follow each other; changes of others run at the same time.

mod backends;
mod control;
mod files;
mod graph;
mod index;
mod lifecycle;
mod load;
mod locate;
mod metrics;
pub(crate) mod overview;
mod poll;
mod scan;
mod seen;
mod source;
mod table;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Weak, atomic::AtomicBool},
    thread,
    time::Instant,
};

use parking_lot::{Condvar, Mutex};

pub(crate) use self::control::ModelControl;
pub use self::{
    control::Asker,
    files::read_config_text,
    locate::{Served, served},
};
use self::{
    graph::Sources,
    lifecycle::Candidate,
    load::Loader,
    scan::SentDirectory,
    seen::Seen,
    source::Source,
    table::{Identifier, Slot, Table, UNLOADED},
};
use crate::{
    config::{ModelConfig, ensemble},
    error::Error,
    metadata::ModelState,
    model::Model,
    options::{LoadParameters, Options},
    statistics::ModelStatistics,
};

/// The repositories of a server and the models loaded from them.
pub(crate) struct Repository {
    pub table: Arc<Table>,
    loader: Loader,
    /// What was seen of repositories elsewhere. With locks of its own: who looks at the repositories holds that of the state
    /// for as long as those take to answer.
    seen: Vec<Arc<Seen>>,
    state: Mutex<State>,
    /// Why models were not loaded when that was tried last. A lock of its own: who looks at the repositories holds the
    /// other one for long.
    failures: Mutex<Failures>,
    /// A change of models is over.
    changed: Condvar,
    /// Whether models may change models.
    is_open: AtomicBool,
}

#[derive(Default)]
struct State {
    /// Models that are loaded or were to be.
    sources: Sources,
    /// Models that are being changed.
    busy: BTreeSet<Identifier>,
}

/// Why models were not loaded: also those that could not be read, of which nothing else is known.
type Failures = BTreeMap<Identifier, String>;

/// Whether models were loaded, and why not.
type Results = BTreeMap<Identifier, Result<(), Error>>;

impl Repository {
    pub fn new(options: Options) -> Arc<Self> {
        let table = Arc::new(Table::default());
        SentDirectory::remove_abandoned();
        let seen = options.remote_repositories.iter().map(|repository| Seen::new(repository.clone())).collect();
        Arc::new_cyclic(|own: &Weak<Self>| {
            let loader = Loader::new(options, table.clone(), own.clone());
            Self {
                table,
                loader,
                seen,
                state: Mutex::default(),
                failures: Mutex::default(),
                changed: Condvar::new(),
                is_open: AtomicBool::new(false),
            }
        })
    }

    fn options(&self) -> &Options {
        &self.loader.options
    }

    /// Why there is no memory for a request at this time, if there is none.
    pub fn refuse_request(&self, now: Instant) -> Option<Error> {
        self.loader.admission.as_ref()?.refuse_request(now)
    }

    /// Loads what is new or changed in the repositories and unloads what is gone.
    ///
    /// # Errors
    /// A model could not be read, or does not serve.
    pub fn poll(&self) -> Result<(), Error> {
        let mut state = self.state.lock();
        let (claim, polled) = loop {
            let mut polled = self.look_at_all(&state.sources);
            let known = state.sources.keys();
            let gone = known.filter(|id| !polled.changed.contains_key(*id) && !polled.unchanged.contains(*id));
            polled.removed.extend(gone.cloned());
            polled.changed.values_mut().for_each(|source| source.explicit = true);
            match state.claim(&polled.changed, &polled.removed) {
                Some(claim) => break (claim, polled),
                None => self.changed.wait(&mut state),
            }
        };
        let is_complete = polled.errors.is_empty();
        // What is known of the others is known anew.
        self.failures.lock().retain(|id, _| polled.unchanged.contains(id));
        self.failed(&polled.unread);
        drop(state);
        self.change(claim, Asker::Client);
        let all_serve = self.state.lock().sources.keys().all(|id| {
            let versions = self.table.versions(id).unwrap_or_default();
            !versions.is_empty() && versions.values().all(|slot| slot.state == ModelState::Ready)
        });
        match is_complete && all_serve {
            true => Ok(()),
            false => Err(Error::internal("failed to load all models")),
        }
    }

    /// Loads a model, or loads it again where it changed, with the models that it uses.
    pub fn load(&self, name: &str, parameters: &LoadParameters, asker: Asker<'_>) -> Result<(), Error> {
        check_name(name)?;
        let mut state = self.state.lock();
        let claim = loop {
            let polled = self.look_at(&state.sources, name, parameters)?;
            if !polled.errors.is_empty() {
                let why = polled.errors.iter().find(|error| !error.message.is_empty());
                // A model that could be read lacks one that it uses.
                let asked = polled.changed.keys().chain(&polled.unchanged).filter(|id| id.name == name);
                self.failed(asked.filter_map(|id| Some((id, why?))));
                self.failed(&polled.unread);
                let why = why.map_or(String::new(), |error| format!(": {}", error.message));
                let text = format!("failed to load '{name}', failed to poll from model repository{why}");
                return Err(Error::internal(text));
            }
            // What is unchanged may not be loaded yet.
            let is_busy = polled.unchanged.iter().any(|id| state.busy.contains(id));
            let claim = if is_busy { None } else { state.claim(&polled.changed, &polled.removed) };
            match claim {
                Some(claim) => break claim,
                None => self.wait_for_others(&mut state, name, asker)?,
            }
        };
        drop(state);
        let results = self.change(claim, asker);
        let failed: String = results
            .iter()
            .filter(|(id, _)| id.name == name)
            .filter_map(|(id, result)| Some((id, result.as_ref().err()?)))
            .map(|(id, error)| format!("load failed for model '{id}': {}\n", error.message))
            .collect();
        if failed.is_empty() { Ok(()) } else { Err(Error::invalid(failed)) }
    }

    /// Unloads a model; with `dependents` also the models that only it uses. Ensembles that use it end too.
    ///
    /// # Errors
    /// Who asks cannot wait until somebody else has changed it.
    pub fn unload(&self, name: &str, dependents: bool, asker: Asker<'_>) -> Result<(), Error> {
        let which = |sources: &Sources| {
            let named: BTreeSet<Identifier> = sources.keys().filter(|id| id.name == name).cloned().collect();
            if dependents { graph::orphans(sources, &named) } else { named }
        };
        self.remove(which, name, asker)?;
        // Also of one that never came so far that it is known.
        self.failures.lock().retain(|id, _| id.name != name);
        Ok(())
    }

    /// Unloads everything.
    pub fn unload_all(&self) {
        // Nobody stands in the way of the server itself for good.
        let _ = self.remove(|sources| sources.keys().cloned().collect(), "", Asker::Client);
    }

    fn remove(
        &self,
        which: impl Fn(&Sources) -> BTreeSet<Identifier>,
        name: &str,
        asker: Asker<'_>,
    ) -> Result<(), Error> {
        let mut state = self.state.lock();
        let claim = loop {
            let removed = which(&state.sources);
            match state.claim(&Sources::new(), &removed) {
                Some(claim) => break claim,
                None => self.wait_for_others(&mut state, name, asker)?,
            }
        };
        drop(state);
        self.change(claim, asker);
        Ok(())
    }

    /// Does what was claimed.
    fn change(&self, claim: Claim, asker: Asker<'_>) -> Results {
        let Claim { sources, todo, removed } = claim;
        for id in &removed {
            self.loader.unload_versions(id);
        }
        let results = self.load_in_order(&sources, &todo, asker);

        let mut state = self.state.lock();
        let mut failures = self.failures.lock();
        for id in todo.iter().chain(&removed) {
            state.busy.remove(id);
            failures.remove(id);
            if let Some(source) = state.sources.get_mut(id) {
                match results.get(id) {
                    Some(Err(_)) => source.timestamps = source.loaded.clone(),
                    _ => source.loaded = source.timestamps.clone(),
                }
            }
        }
        drop(failures);
        self.failed(results.iter().filter_map(|(id, result)| Some((id, result.as_ref().err()?))));
        drop(state);
        self.changed.notify_all();
        results
    }

    /// Remembers why models were not loaded.
    fn failed<'a>(&self, failed: impl IntoIterator<Item = (&'a Identifier, &'a Error)>) {
        // As the reasons of versions are.
        let reason = |error: &Error| format!("{}: {}", error.code.name(), error.message);
        self.failures.lock().extend(failed.into_iter().map(|(id, error)| (id.clone(), reason(error))));
    }

    /// Loads `todo`, members before the ensembles that use them, as many at once as possible.
    fn load_in_order(&self, sources: &Sources, todo: &BTreeSet<Identifier>, asker: Asker<'_>) -> Results {
        let mut results = Results::new();
        let mut waiting = todo.clone();
        while !waiting.is_empty() {
            let is_ready =
                |id: &&Identifier| graph::members(sources, id).iter().all(|member| !waiting.contains(*member));
            let mut wave: Vec<Identifier> = waiting.iter().filter(is_ready).cloned().collect();
            if wave.is_empty() {
                // Only ensembles that use each other are left; each finds that out for itself.
                wave = waiting.iter().cloned().collect();
            }
            waiting.retain(|id| !wave.contains(id));
            let loaded: Vec<(Identifier, Result<(), Error>)> = thread::scope(|scope| {
                let results = &results;
                let load = |id: Identifier| {
                    let result = self.load_one(sources, &id, results, asker);
                    (id, result)
                };
                let last = wave.pop();
                let threads: Vec<_> = wave.into_iter().map(|id| scope.spawn(move || load(id))).collect();
                let last = last.map(load);
                // A load catches the panics of its backend.
                threads.into_iter().filter_map(|thread| thread.join().ok()).chain(last).collect()
            });
            results.extend(loaded);
        }
        results
    }

    fn load_one(&self, sources: &Sources, id: &Identifier, results: &Results, asker: Asker<'_>) -> Result<(), Error> {
        let Some(source) = sources.get(id) else { return Ok(()) };
        let mut config = source.config.clone();
        if config.is_ensemble()
            && let Err(error) = self.check_ensemble(sources, id, &mut config, results)
        {
            tracing::error!("{}: {}", error.code.name(), error.message);
            self.loader.unload_versions(id);
            return Err(error);
        }
        let Source { files, loaded, timestamps, is_sent, .. } = source;
        self.loader.load_versions(&Candidate {
            id,
            files,
            config: &config,
            loaded,
            current: timestamps,
            is_sent: *is_sent,
            asker,
        })
    }

    /// Checks an ensemble against its members, which are loaded by now.
    fn check_ensemble(
        &self,
        sources: &Sources,
        id: &Identifier,
        config: &mut ModelConfig,
        results: &Results,
    ) -> Result<(), Error> {
        graph::check_members(sources, id)?;
        graph::check_cache(sources, id)?;
        let mut members: BTreeMap<&str, Arc<ModelConfig>> = BTreeMap::new();
        for step in ensemble::steps(config) {
            let name = step.model_name.as_str();
            let member = graph::resolve(sources, &id.namespace, name);
            let versions = member.and_then(|member| self.table.versions(member)).unwrap_or_default();
            let mut ready = versions.iter().filter(|(_, slot)| slot.state == ModelState::Ready);
            if ready.clone().next().is_none() {
                let why = member.and_then(|member| results.get(member)?.as_ref().err());
                let why = why.map_or(String::new(), |error| {
                    format!(" Model '{name}' loading failed with error: {}", error.message)
                });
                return Err(Error::invalid(format!(
                    "ensemble '{id}' depends on '{name}' which has no loaded version.{why}"
                )));
            }
            let version = step.model_version;
            if version > 0 && !ready.any(|(number, _)| *number == version) {
                return Err(Error::invalid(format!(
                    "ensemble '{id}' depends on '{name}' whose required version {version} is not loaded."
                )));
            }
            members.insert(name, self.table.get_in(&id.namespace, name, None)?.config());
        }
        let is_decoupled = ensemble::validate_members(config, |name| members.get(name).map(|config| &**config))?;
        config.model_transaction_policy.get_or_insert_default().decoupled = is_decoupled;
        Ok(())
    }

    /// Whether every model that was ever to be loaded serves, or was unloaded on purpose.
    pub fn is_ready(&self) -> bool {
        let is_served = |slot: &Slot| slot.model.as_ref().is_none_or(|model| model.is_ready());
        let is_fine = |slot: &Slot| slot.reason == UNLOADED || (slot.state == ModelState::Ready && is_served(slot));
        self.table.all().iter().all(|(_, versions)| !versions.is_empty() && versions.values().all(is_fine))
    }

    /// Whether no model serves or is on its way to or from serving, those that another one replaced included.
    pub fn is_unloaded(&self) -> bool {
        if self.table.leaving() > 0 {
            return false;
        }
        let slots = self.table.all().into_iter().flat_map(|(_, versions)| versions.into_values());
        let states = [ModelState::Ready, ModelState::Loading, ModelState::Unloading];
        slots.into_iter().all(|slot| !states.contains(&slot.state))
    }

    /// Statistics of the versions that are ready: of all models (empty name), of one, of one version.
    pub fn ready_models(&self, name: &str, version: Option<i64>) -> impl Iterator<Item = ModelStatistics> {
        let all = self.table.all().into_iter().filter(move |(id, _)| name.is_empty() || id.name == name);
        all.flat_map(move |(id, versions)| {
            let versions =
                versions.into_iter().filter(move |(number, _)| version.is_none_or(|version| version == *number));
            let ready = versions.filter_map(|(_, slot)| slot.model.filter(|_| slot.state == ModelState::Ready));
            ready.map(move |model| model.recorder.snapshot(&id.name, model.version))
        })
    }

    /// Instances that wait for their turn.
    #[cfg(test)]
    pub fn instances_asking(&self) -> usize {
        self.loader.rate_limiter.as_ref().map_or(0, |limiter| limiter.asking())
    }

    /// Versions of models that serve.
    pub fn models(&self) -> Vec<Arc<Model>> {
        let slots = self.table.all().into_iter().flat_map(|(_, versions)| versions.into_values());
        slots.filter_map(|slot| slot.model).collect()
    }
}

/// The right to change some models, which nobody else changes meanwhile.
struct Claim {
    /// All models as they are to be.
    sources: Sources,
    /// Models to load, and ensembles to look at again.
    todo: BTreeSet<Identifier>,
    /// Models to unload.
    removed: BTreeSet<Identifier>,
}

impl State {
    /// Claims what a change of `changed` and `removed` concerns, ensembles that use them included. `None`
    /// while others change some of it.
    fn claim(&mut self, changed: &Sources, removed: &BTreeSet<Identifier>) -> Option<Claim> {
        let mut sources = self.sources.clone();
        sources.retain(|id, _| !removed.contains(id));
        sources.extend(changed.iter().map(|(id, source)| (id.clone(), source.clone())));
        let touched: BTreeSet<Identifier> = removed.iter().chain(changed.keys()).cloned().collect();
        let mut todo = graph::dependents(&sources, &touched);
        todo.extend(changed.keys().cloned());
        let concerned: BTreeSet<Identifier> = todo.union(removed).cloned().collect();
        if !self.busy.is_disjoint(&concerned) {
            return None;
        }
        self.busy.extend(concerned);
        self.sources.clone_from(&sources);
        Some(Claim { sources, todo, removed: removed.clone() })
    }
}

/// A name that could leave the repository is none.
fn check_name(name: &str) -> Result<(), Error> {
    if name.is_empty() {
        return Err(Error::invalid("Invalid model name: model name must not be empty"));
    }
    if name == ".." || name == "." || name.contains(['/', '\\', '\0']) {
        return Err(Error::invalid(format!("Invalid model name: '{name}' must be the name of a directory")));
    }
    Ok(())
}
