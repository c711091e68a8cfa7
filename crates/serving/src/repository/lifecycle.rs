//! Loads, replaces and unloads the versions of one model.

use std::{collections::BTreeSet, sync::Arc, thread};

use super::{
    control::Asker,
    files::ModelFiles,
    load::Loader,
    locate::no_version,
    scan::Timestamps,
    table::{Identifier, Slot, Table, UNLOADED, Versions},
};
use crate::{
    config::{self, ModelConfig},
    error::Error,
    metadata::ModelState,
    model::Model,
};

/// A model as the repository has it now, and when it was as it is loaded.
pub(super) struct Candidate<'a> {
    pub id: &'a Identifier,
    pub files: &'a ModelFiles,
    pub config: &'a ModelConfig,
    pub loaded: &'a Timestamps,
    pub current: &'a Timestamps,
    /// Whether somebody sent its files, which have no timestamps.
    pub is_sent: bool,
    /// Who wants it to be loaded.
    pub asker: Asker<'a>,
}

/// What the log says of a version that has ended.
const UNLOADED_LINE: &str = "successfully unloaded";

/// What is to be done for one version.
enum Work {
    /// It is loaded; until then a version that serves keeps serving.
    Load,
    /// Its instances alone are changed.
    Update(Arc<Model>),
}

/// What was done for one version.
enum Done {
    Loaded(Arc<Model>),
    Updated,
}

impl Loader {
    /// The versions that the version policy selects, at least one.
    fn versions(&self, id: &Identifier, files: &ModelFiles, config: &ModelConfig) -> Result<Vec<i64>, Error> {
        let versions = files.versions(config)?;
        if versions.is_empty() {
            self.table.change(id, |_| {});
            return Err(no_version(id));
        }
        Ok(versions)
    }

    /// Loads the versions that the version policy selects, several at once, and unloads the others. If one
    /// fails, nothing that served before changes.
    pub fn load_versions(&self, candidate: &Candidate<'_>) -> Result<(), Error> {
        let Candidate { id, files, config, asker, .. } = *candidate;
        let versions = self.versions(id, files, config).inspect_err(|error| {
            tracing::error!("failed to load '{id}': {}: {}", error.code.name(), error.message);
        })?;
        let generation = self.next_generation();
        let source = Arc::new(config.clone());
        let work = self.table.change(id, |slots| {
            versions
                .iter()
                .map(|version| (*version, self.begin(slots, *version, candidate, &source, generation)))
                .collect::<Vec<_>>()
        });
        // Instances can be changed without the files.
        let files = match work.iter().any(|(_, work)| matches!(work, Work::Load)) {
            true => match self.fetch(id, files, asker) {
                Ok(files) => Some(files),
                Err(error) => {
                    let failed = work.into_iter().map(|(version, _)| (version, Err(error.clone()))).collect();
                    return self.commit(id, failed, &source, generation);
                }
            },
            false => None,
        };
        let files = files.as_ref();
        let results: Vec<(i64, Result<Done, Error>)> = thread::scope(|scope| {
            let run = |version: i64, work: Work| match (work, files) {
                (Work::Load, Some(files)) => self.load(id, files, config, version, asker).map(Done::Loaded),
                (Work::Load, None) => Err(Error::internal(format!("nobody fetched the files of '{id}'"))),
                (Work::Update(model), _) => self.update(&model, config, asker).map(|()| Done::Updated),
            };
            // The last version needs no thread of its own.
            let mut work = work;
            let last = work.pop();
            let threads: Vec<_> =
                work.into_iter().map(|(version, work)| (version, scope.spawn(move || run(version, work)))).collect();
            let last = last.map(|(version, work)| (version, run(version, work)));
            let failed = |_| Err(Error::internal(format!("loading model '{id}' panicked")));
            threads
                .into_iter()
                .map(|(version, thread)| (version, thread.join().unwrap_or_else(failed)))
                .chain(last)
                .collect()
        });
        self.commit(id, results, &source, generation)
    }

    /// Marks a version as being loaded, unless it serves.
    fn begin(
        &self,
        slots: &mut Versions,
        version: i64,
        candidate: &Candidate<'_>,
        source: &Arc<ModelConfig>,
        generation: u64,
    ) -> Work {
        if let Some(Slot { state: ModelState::Ready, model: Some(model), source, .. }) = slots.get(&version) {
            let is_same = !candidate.config.is_ensemble()
                && !candidate.is_sent
                && !candidate.loaded.is_version_modified(candidate.current, version)
                && !source.requires_reload(candidate.config);
            return if is_same { Work::Update(model.clone()) } else { Work::Load };
        }
        let state = ModelState::Loading;
        slots.insert(version, Slot { state, reason: String::new(), model: None, source: source.clone(), generation });
        Work::Load
    }

    /// Changes the instances of a model to those of `config`. Those that are too many may run a request of who asks:
    /// only clients wait until they have ended.
    fn update(&self, model: &Model, config: &ModelConfig, asker: Asker<'_>) -> Result<(), Error> {
        let options = self.config_options(&config.backend)?;
        let mut new = (*model.config()).clone();
        new.instance_group.clone_from(&config.instance_group);
        new.version_policy.clone_from(&config.version_policy);
        config::normalize_instance_groups(&mut new, &options.gpus);
        config::validate_instance_groups(&new, &options.gpus)?;
        config::check_supported(&new)?;
        model.update_instances(new, asker == Asker::Client)
    }

    fn commit(
        &self,
        id: &Identifier,
        results: Vec<(i64, Result<Done, Error>)>,
        source: &Arc<ModelConfig>,
        generation: u64,
    ) -> Result<(), Error> {
        let failed: String = results
            .iter()
            .filter_map(|(version, result)| Some((version, result.as_ref().err()?)))
            .map(|(version, error)| {
                let (state, code) = (ModelState::Unavailable.name(), error.code.name());
                format!("version {version} is at {state} state: {code}: {};", error.message)
            })
            .collect();
        if !failed.is_empty() {
            self.withdraw(id, results, generation);
            tracing::trace!("OnLoadFinal() '{id}' for all version(s)");
            tracing::error!("failed to load '{id}'");
            return Err(Error::invalid(failed));
        }
        let kept: BTreeSet<i64> = results.iter().map(|(version, _)| *version).collect();
        let old = self.table.change(id, |slots| {
            let mut old: Vec<_> = slots
                .iter_mut()
                .filter(|(version, slot)| !kept.contains(version) && slot.state == ModelState::Ready)
                .filter_map(|(version, slot)| release(&self.table, id, *version, slot))
                .collect();
            for (version, result) in results {
                let Ok(done) = result else { continue };
                let Some(slot) = slots.get_mut(&version) else { continue };
                slot.source = source.clone();
                if let Done::Loaded(model) = done {
                    // The model that served so far answers what it has and ends.
                    old.extend(slot.model.replace(model).inspect(|old| {
                        let id = id.clone();
                        self.table.on_left(old, move |_| tracing::info!("{UNLOADED_LINE} '{id}' version {version}"));
                    }));
                    (slot.state, slot.generation) = (ModelState::Ready, generation);
                    slot.reason.clear();
                }
            }
            old
        });
        tracing::trace!("OnLoadFinal() '{id}' for all version(s)");
        tracing::info!("successfully loaded '{id}'");
        old.into_iter().for_each(Model::end);
        Ok(())
    }

    /// Takes back a load of which a version failed.
    fn withdraw(&self, id: &Identifier, results: Vec<(i64, Result<Done, Error>)>, generation: u64) {
        let old = self.table.change(id, |slots| {
            let mut old = Vec::new();
            for (version, result) in results {
                let Some(slot) = slots.get_mut(&version).filter(|slot| slot.generation == generation) else {
                    // An older model serves on.
                    continue;
                };
                match result {
                    Ok(Done::Loaded(model)) => {
                        slot.model = Some(model);
                        old.extend(release(&self.table, id, version, slot));
                    }
                    Ok(Done::Updated) => {}
                    Err(error) => {
                        slot.state = ModelState::Unavailable;
                        slot.reason = format!("{}: {}", error.code.name(), error.message);
                    }
                }
            }
            old
        });
        old.into_iter().for_each(Model::end);
    }

    /// Unloads all versions of a model that serve. Requests in flight are still answered.
    pub fn unload_versions(&self, id: &Identifier) {
        if self.table.versions(id).is_none() {
            return;
        }
        tracing::trace!("AsyncUnload() '{id}'");
        let old: Vec<Arc<Model>> = self.table.change(id, |slots| {
            slots.iter_mut().filter_map(|(version, slot)| release(&self.table, id, *version, slot)).collect()
        });
        old.into_iter().for_each(Model::end);
    }
}

/// Takes the model out of a slot, which becomes unavailable once the model has ended. The caller lets
/// go of the model outside the lock.
fn release(table: &Arc<Table>, id: &Identifier, version: i64, slot: &mut Slot) -> Option<Arc<Model>> {
    let model = slot.model.take()?;
    slot.state = ModelState::Unloading;
    let (id, generation) = (id.clone(), slot.generation);
    table.on_left(&model, move |table| {
        table.change(&id, |slots| {
            let slot = slots.get_mut(&version);
            if let Some(slot) = slot.filter(|slot| slot.generation == generation && slot.model.is_none()) {
                slot.state = ModelState::Unavailable;
                slot.reason = UNLOADED.to_owned();
            }
        });
        tracing::info!("{UNLOADED_LINE} '{id}' version {version}");
    });
    Some(model)
}
