//! Which models an ensemble uses.

use std::collections::{BTreeMap, BTreeSet};

use super::{source::Source, table::Identifier};
use crate::{
    config::{ensemble::steps, proto::model_config::SchedulingChoice},
    error::Error,
    model::wants_cache,
};

/// The models of the repository.
pub(super) type Sources = BTreeMap<Identifier, Source>;

/// The model that an ensemble in `namespace` calls `name`: the one of its namespace, or the only one.
pub(super) fn resolve<'a>(sources: &'a Sources, namespace: &str, name: &str) -> Option<&'a Identifier> {
    let exact = Identifier { namespace: namespace.to_owned(), name: name.to_owned() };
    if let Some((id, _)) = sources.get_key_value(&exact) {
        return Some(id);
    }
    let mut named = sources.keys().filter(|id| id.name == name);
    named.next().filter(|_| named.next().is_none())
}

/// The models that a model uses directly.
pub(super) fn members<'a>(sources: &'a Sources, id: &Identifier) -> BTreeSet<&'a Identifier> {
    let steps = sources.get(id).map(|source| steps(&source.config)).unwrap_or_default();
    steps.iter().filter_map(|step| resolve(sources, &id.namespace, &step.model_name)).collect()
}

/// The ensembles that use one of `changed`, directly or through others, by name: also those whose member
/// is missing.
pub(super) fn dependents(sources: &Sources, changed: &BTreeSet<Identifier>) -> BTreeSet<Identifier> {
    let mut names: BTreeSet<&str> = changed.iter().map(|id| id.name.as_str()).collect();
    let mut found = BTreeSet::new();
    loop {
        let next: Vec<&Identifier> = sources
            .iter()
            .filter(|(id, source)| {
                !found.contains(*id)
                    && steps(&source.config).iter().any(|step| names.contains(step.model_name.as_str()))
            })
            .map(|(id, _)| id)
            .collect();
        if next.is_empty() {
            return found;
        }
        names.extend(next.iter().map(|id| id.name.as_str()));
        found.extend(next.into_iter().cloned());
    }
}

/// Checks that all models that an ensemble uses are there and that it does not use itself.
pub(super) fn check_members(sources: &Sources, id: &Identifier) -> Result<(), Error> {
    let Some(source) = sources.get(id) else { return Ok(()) };
    let missing: BTreeSet<&str> = steps(&source.config)
        .iter()
        .map(|step| step.model_name.as_str())
        .filter(|name| resolve(sources, &id.namespace, name).is_none())
        .collect();
    if !missing.is_empty() {
        let names: Vec<&str> = missing.into_iter().collect();
        return Err(Error::invalid(format!(
            "ensemble {id} contains models that are not available or ambiguous: {}",
            names.join(", ")
        )));
    }
    let mut seen = BTreeSet::new();
    let mut stack = vec![id];
    while let Some(current) = stack.pop() {
        for member in members(sources, current) {
            if member == id {
                return Err(Error::invalid(format!(
                    "circular dependency between ensembles: {id} -> ... -> {current} -> {id}"
                )));
            }
            if seen.insert(member) {
                stack.push(member);
            }
        }
    }
    Ok(())
}

/// Checks that an ensemble with a response cache answers equal requests alike: a sequence among its members, or among
/// theirs, would remember what came before, and miss what the cache answered.
pub(super) fn check_cache(sources: &Sources, id: &Identifier) -> Result<(), Error> {
    if !sources.get(id).is_some_and(|source| wants_cache(&source.config)) {
        return Ok(());
    }
    let mut seen = BTreeSet::new();
    let mut stack = vec![id];
    while let Some(current) = stack.pop() {
        for member in members(sources, current) {
            let scheduling = sources.get(member).and_then(|source| source.config.scheduling_choice.as_ref());
            if matches!(scheduling, Some(SchedulingChoice::SequenceBatching(_))) {
                // Triton's text for a model, which there is not asked of an ensemble's members.
                return Err(Error::invalid(format!(
                    "Response Cache does not currently support model {id} with sequence batching scheduler (of its \
                     member {member}). Please disable the response cache."
                )));
            }
            if seen.insert(member) {
                stack.push(member);
            }
        }
    }
    Ok(())
}

/// The models to unload with `removed`: those that only they use and that no client asked for.
pub(super) fn orphans(sources: &Sources, removed: &BTreeSet<Identifier>) -> BTreeSet<Identifier> {
    let mut all = removed.clone();
    loop {
        let used: BTreeSet<&Identifier> =
            sources.keys().filter(|id| !all.contains(*id)).flat_map(|id| members(sources, id)).collect();
        let mine: BTreeSet<&Identifier> = all.iter().flat_map(|id| members(sources, id)).collect();
        let is_orphan = |id: &&&Identifier| {
            !used.contains(**id) && !all.contains(**id) && sources.get(**id).is_some_and(|source| !source.explicit)
        };
        let next: Vec<Identifier> = mine.iter().filter(is_orphan).map(|id| (**id).clone()).collect();
        if next.is_empty() {
            return all;
        }
        all.extend(next);
    }
}
