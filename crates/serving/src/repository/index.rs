//! What the repository index shows.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use super::{
    Repository, scan,
    seen::Seen,
    table::{Identifier, Slot, UNLOADED, Versions},
};
use crate::{
    error::Error,
    metadata::{IndexEntry, ModelState},
};

impl Repository {
    /// The versions that were ever to be loaded, with their states. Looks at no repository.
    pub fn states(&self) -> Vec<IndexEntry> {
        let of_model = |(id, versions): (Identifier, Versions)| {
            versions.into_iter().map(move |(version, slot)| IndexEntry {
                name: id.name.clone(),
                namespace: id.namespace.clone(),
                version: Some(version),
                state: Some(slot.state),
                reason: slot.reason,
            })
        };
        self.table.all().into_iter().flat_map(of_model).collect()
    }

    /// The models in the directories of the repositories, with the state of each version that was ever to
    /// be loaded.
    pub fn index(&self, ready_only: bool) -> Result<Vec<IndexEntry>, Error> {
        self.index_of(ready_only, |seen| seen.look())
    }

    /// The same, with models of repositories elsewhere as they were seen last: waits for none of those.
    pub(super) fn last_index(&self) -> Result<Vec<IndexEntry>, Error> {
        self.index_of(false, Seen::last)
    }

    fn index_of(
        &self,
        ready_only: bool,
        names: impl Fn(&Arc<Seen>) -> BTreeSet<String>,
    ) -> Result<Vec<IndexEntry>, Error> {
        let mut found: BTreeMap<Identifier, usize> = BTreeMap::new();
        for repository in &self.options().repositories {
            let names = scan::subdirectories(repository).map_err(|error| {
                Error::internal(format!("failed to read model repository '{}': {error}", repository.display()))
            })?;
            for name in names {
                *found.entry(Identifier { namespace: self.namespace(repository), name }).or_default() += 1;
            }
        }
        for seen in &self.seen {
            let namespace = self.remote_namespace(&seen.repository);
            for name in names(seen) {
                *found.entry(Identifier { namespace: namespace.clone(), name }).or_default() += 1;
            }
        }
        let failures = self.failures.lock().clone();
        let mut index = Vec::new();
        for (id, count) in found {
            let entry = |version, state, reason: &str| IndexEntry {
                name: id.name.clone(),
                namespace: id.namespace.clone(),
                version,
                state,
                reason: reason.to_owned(),
            };
            if count > 1 {
                let reason = "model appears in two or more repositories";
                index.push(entry(None, Some(ModelState::Unavailable), reason));
                continue;
            }
            let versions = self.table.versions(&id).filter(|versions| !versions.is_empty());
            match (versions, failures.get(&id)) {
                (None, _) if ready_only => {}
                // Nobody tried to load it, or it has no version and nobody could say why.
                (None, None) => index.push(entry(None, None, "")),
                // It has not come so far that it has versions: Triton names the model alone.
                (None, Some(reason)) => index.push(entry(None, Some(ModelState::Unavailable), reason)),
                (Some(versions), failure) => {
                    // Versions of an ensemble that lost a member end as those that were unloaded on purpose.
                    let failure = failure.filter(|_| versions.values().all(|slot| slot.state != ModelState::Ready));
                    let reason = |slot: &Slot| match failure {
                        Some(failure) if slot.reason == UNLOADED => failure.clone(),
                        _ => slot.reason.clone(),
                    };
                    let shown = |slot: &Slot| !ready_only || slot.state == ModelState::Ready;
                    let shown = versions.iter().filter(|(_, slot)| shown(slot));
                    index.extend(shown.map(|(version, slot)| entry(Some(*version), Some(slot.state), &reason(slot))));
                }
            }
        }
        Ok(index)
    }
}
