//! The state of every version of every model, and the way from a name to a model.

use std::{
    collections::{BTreeMap, HashMap},
    fmt,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
};

use parking_lot::RwLock;

use crate::{config::ModelConfig, ensemble::Members, error::Error, metadata::ModelState, model::Model};

/// A model of the repository.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Identifier {
    /// The repository, where models are told apart by it; empty otherwise.
    pub namespace: String,
    /// The model's name.
    pub name: String,
}

impl fmt::Display for Identifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.namespace.as_str() {
            "" => f.write_str(&self.name),
            namespace => write!(f, "{namespace}::{}", self.name),
        }
    }
}

/// One version of a model.
#[derive(Debug, Clone)]
pub(crate) struct Slot {
    pub state: ModelState,
    /// Why it is in that state; empty where it is ready.
    pub reason: String,
    /// The model, while it takes requests.
    pub model: Option<Arc<Model>>,
    /// The configuration that the model was loaded with, as the repository had it.
    pub source: Arc<ModelConfig>,
    /// Which load made the slot; a slot made anew is not touched by the end of an old model.
    pub generation: u64,
}

/// The reason of versions that were unloaded.
pub(super) const UNLOADED: &str = "unloaded";

/// Versions by number.
pub(crate) type Versions = BTreeMap<i64, Slot>;

/// All models that were ever to be loaded. Requests read it, loads write it.
#[derive(Debug, Default)]
pub(crate) struct Table {
    models: RwLock<HashMap<String, BTreeMap<String, Versions>>>,
    /// Models that were taken out and have not ended: no slot tells of those whose place another one took.
    leaving: AtomicUsize,
}

impl Table {
    /// Calls `then` once a model that was taken out has ended.
    pub fn on_left(self: &Arc<Self>, model: &Model, then: impl FnOnce(&Arc<Table>) + Send + 'static) {
        self.leaving.fetch_add(1, SeqCst);
        let table = self.clone();
        model.on_unloaded(move || {
            then(&table);
            table.leaving.fetch_sub(1, SeqCst);
        });
    }

    /// Models that were taken out and have not ended.
    pub fn leaving(&self) -> usize {
        self.leaving.load(SeqCst)
    }

    /// A version of a model, `None` for the newest that is ready.
    pub fn get(&self, name: &str, version: Option<i64>) -> Result<Arc<Model>, Error> {
        let models = self.models.read();
        let not_found = |text: &str| Error::not_found(format!("Request for unknown model: '{name}' {text}"));
        let Some(namespaces) = models.get(name) else { return Err(not_found("is not found")) };
        let is_served =
            |versions: &&Versions| versions.is_empty() || versions.values().any(|slot| slot.reason != UNLOADED);
        let served: Vec<&Versions> = namespaces.values().filter(is_served).collect();
        match (&served[..], namespaces.values().next()) {
            ([versions], _) => find(versions.iter(), name, version),
            ([], Some(versions)) => find(versions.iter(), name, version),
            ([], None) => Err(not_found("is not found")),
            _ => Err(Error::invalid(format!(
                "There are {} identifiers of model '{name}' in global map, model namespace must be provided to resolve \
                 ambiguity.",
                served.len()
            ))),
        }
    }

    /// The same for a member of an ensemble: the model of the ensemble's namespace before others.
    pub fn get_in(&self, namespace: &str, name: &str, version: Option<i64>) -> Result<Arc<Model>, Error> {
        let models = self.models.read();
        match models.get(name).and_then(|namespaces| namespaces.get(namespace)) {
            Some(versions) => find(versions.iter(), name, version),
            None => {
                drop(models);
                self.get(name, version)
            }
        }
    }

    /// The versions of a model; `None` for one that was never to be loaded.
    pub fn versions(&self, id: &Identifier) -> Option<Versions> {
        self.models.read().get(&id.name)?.get(&id.namespace).cloned()
    }

    /// All models.
    pub fn all(&self) -> Vec<(Identifier, Versions)> {
        let models = self.models.read();
        let mut all: Vec<(Identifier, Versions)> = models
            .iter()
            .flat_map(|(name, namespaces)| {
                namespaces.iter().map(move |(namespace, versions)| (name, namespace, versions))
            })
            .map(|(name, namespace, versions)| {
                (Identifier { namespace: namespace.clone(), name: name.clone() }, versions.clone())
            })
            .collect();
        all.sort_by(|a, b| a.0.cmp(&b.0));
        all
    }

    /// Versions of a model by name alone, that are ready, ascending.
    pub fn ready_versions(&self, name: &str) -> Vec<i64> {
        let models = self.models.read();
        let slots = models.get(name).into_iter().flat_map(BTreeMap::values).flatten();
        slots.filter(|(_, slot)| slot.state == ModelState::Ready).map(|(version, _)| *version).collect()
    }

    /// Changes the versions of a model in one step. Models that are taken out are to be dropped by the
    /// caller, outside.
    pub fn change<R>(&self, id: &Identifier, change: impl FnOnce(&mut Versions) -> R) -> R {
        let mut models = self.models.write();
        change(models.entry(id.name.clone()).or_default().entry(id.namespace.clone()).or_default())
    }
}

fn find<'a>(
    versions: impl DoubleEndedIterator<Item = (&'a i64, &'a Slot)>,
    name: &str,
    version: Option<i64>,
) -> Result<Arc<Model>, Error> {
    let mut newest_first = versions.rev();
    let text = |text: &str| format!("Request for unknown model: '{name}' {text}");
    let Some(version) = version else {
        let ready = newest_first.find_map(|(_, slot)| slot.ready_model());
        return ready.ok_or_else(|| Error::not_found(text("has no available versions")));
    };
    match newest_first.find(|(number, _)| **number == version) {
        None => Err(Error::not_found(text(&format!("version {version} is not found")))),
        Some((_, slot)) => slot
            .ready_model()
            .ok_or_else(|| Error::unavailable(text(&format!("version {version} is not at ready state")))),
    }
}

impl Slot {
    fn ready_model(&self) -> Option<Arc<Model>> {
        self.model.clone().filter(|_| self.state == ModelState::Ready)
    }
}

/// The members of ensembles in one namespace.
#[derive(Debug)]
pub(super) struct NamespaceMembers {
    pub table: Arc<Table>,
    pub namespace: String,
}

impl Members for NamespaceMembers {
    fn model(&self, name: &str, version: Option<i64>) -> Result<Arc<Model>, Error> {
        self.table.get_in(&self.namespace, name, version)
    }
}
