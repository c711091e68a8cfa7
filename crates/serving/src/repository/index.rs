//! What the repository index shows.

use std::collections::BTreeMap;

use super::{
    Repository, scan,
    table::{Identifier, Versions},
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
        let mut found: BTreeMap<Identifier, usize> = BTreeMap::new();
        for repository in &self.options().repositories {
            let names = scan::subdirectories(repository).map_err(|error| {
                Error::internal(format!("failed to read model repository '{}': {error}", repository.display()))
            })?;
            for name in names {
                *found.entry(Identifier { namespace: self.namespace(repository), name }).or_default() += 1;
            }
        }
        for repository in &self.options().remote_repositories {
            let namespace = self.remote_namespace(repository);
            let names = repository.names().unwrap_or_else(|error| {
                // What is known of it is better than nothing: its models serve on.
                tracing::warn!("failed to read model repository '{}': {}", repository.address(), error.message);
                self.known_models(repository)
            });
            for name in names {
                *found.entry(Identifier { namespace: namespace.clone(), name }).or_default() += 1;
            }
        }
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
            match self.table.versions(&id) {
                None if ready_only => {}
                None => index.push(entry(None, None, "")),
                Some(versions) => index.extend(
                    versions
                        .iter()
                        .filter(|(_, slot)| !ready_only || slot.state == ModelState::Ready)
                        .map(|(version, slot)| entry(Some(*version), Some(slot.state), &slot.reason)),
                ),
            }
        }
        Ok(index)
    }
}
