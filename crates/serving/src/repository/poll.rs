//! Looks at the repositories: which models are there, and which of them are new or changed.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
    sync::Arc,
};

use super::{
    Repository, check_name,
    files::{ModelFiles, RemoteModel},
    graph::Sources,
    scan,
    table::Identifier,
};
use crate::{
    config::ensemble,
    error::Error,
    options::LoadParameters,
    remote::{RemoteFile, RemoteRepository},
};

/// What looking at the repositories found.
#[derive(Default)]
pub(super) struct Polled {
    /// Models that are new or changed.
    pub changed: Sources,
    /// Models that are as they were.
    pub unchanged: BTreeSet<Identifier>,
    /// Models that are gone, or found in two repositories.
    pub removed: BTreeSet<Identifier>,
    /// Why models could not be read, or repositories.
    pub errors: Vec<Error>,
    /// The models among them.
    pub unread: BTreeMap<Identifier, Error>,
}

impl Repository {
    pub(super) fn namespace(&self, repository: &Path) -> String {
        if self.options().model_namespacing { repository.display().to_string() } else { String::new() }
    }

    pub(super) fn remote_namespace(&self, repository: &Arc<dyn RemoteRepository>) -> String {
        if self.options().model_namespacing { repository.address().to_owned() } else { String::new() }
    }

    /// Looks at every directory of every repository.
    pub(super) fn look_at_all(&self, known: &Sources) -> Polled {
        let mut polled = Polled::default();
        let mut directories = BTreeMap::new();
        for repository in &self.options().repositories {
            let names = match scan::subdirectories(repository) {
                Ok(names) => names,
                Err(error) => {
                    let text = format!("failed to poll model repository '{}': {error}", repository.display());
                    polled.fail(Error::internal(text));
                    continue;
                }
            };
            for name in names {
                let directory = repository.join(&name);
                let id = Identifier { namespace: self.namespace(repository), name };
                if directories.insert(id.clone(), Ok(ModelFiles::Directory(directory))).is_some() {
                    polled.not_unique(id);
                }
            }
        }
        for seen in &self.seen {
            let repository = &seen.repository;
            match repository.list(None) {
                Ok(models) => {
                    seen.saw_all(models.keys().cloned().collect());
                    for (name, files) in models {
                        let id = Identifier { namespace: self.remote_namespace(repository), name: name.clone() };
                        if directories.insert(id.clone(), remote_model(repository, name, files)).is_some() {
                            polled.not_unique(id);
                        }
                    }
                }
                Err(error) => {
                    let text = format!("failed to poll model repository '{}': {}", repository.address(), error.message);
                    polled.fail(Error::internal(text));
                    // A repository that cannot be reached is no reason to unload what came from it.
                    let from_it = known.iter().filter(|(_, source)| source.files.is_in(repository));
                    polled.unchanged.extend(from_it.map(|(id, _)| id.clone()));
                }
            }
        }
        directories.retain(|id, _| !polled.removed.contains(id));
        self.read(&mut polled, known, directories, &LoadParameters::default());
        polled
    }

    /// Looks at one model and at those that it uses.
    pub(super) fn look_at(&self, known: &Sources, name: &str, parameters: &LoadParameters) -> Result<Polled, Error> {
        let mut polled = Polled::default();
        // Names of models, each with the ensemble that uses it.
        let mut names = vec![(name.to_owned(), None)];
        let mut seen = BTreeSet::new();
        while let Some((next, user)) = names.pop() {
            if !seen.insert(next.clone()) {
                continue;
            }
            // An ensemble may name its members anything.
            if check_name(&next).is_err() {
                polled.missing_member(&next, user.as_deref(), "a member's name must be the name of a directory");
                continue;
            }
            let is_first = next == name;
            let no_parameters = LoadParameters::default();
            let parameters = if is_first { parameters } else { &no_parameters };
            let mut directories = BTreeMap::new();
            if !parameters.files.is_empty() {
                // Where they are is known once they are written.
                let nowhere = Ok(ModelFiles::Directory(Path::new("").to_owned()));
                directories.insert(Identifier { namespace: String::new(), name: next.clone() }, nowhere);
            } else {
                for (namespace, files) in self.find(&mut polled, &next) {
                    let id = Identifier { namespace, name: next.clone() };
                    if directories.insert(id.clone(), files).is_some() {
                        let text = format!("failed to poll model '{id}': not unique across all model repositories");
                        return Err(Error::internal(format!(
                            "failed to load '{name}', failed to poll from model repository: {text}"
                        )));
                    }
                }
            }
            if directories.is_empty() {
                polled.missing_member(&next, user.as_deref(), "model not found in any model repository.");
            }
            let ids: Vec<Identifier> = directories.keys().cloned().collect();
            self.read(&mut polled, known, directories, parameters);
            for id in ids {
                let source = polled.changed.get_mut(&id);
                if let Some(source) = source {
                    source.explicit = is_first || known.get(&id).is_some_and(|known| known.explicit);
                }
                let source = polled.changed.get(&id).or_else(|| known.get(&id));
                let steps = source.map(|source| ensemble::steps(&source.config)).unwrap_or_default();
                names.extend(steps.iter().map(|step| (step.model_name.clone(), Some(next.clone()))));
            }
        }
        Ok(polled)
    }

    /// The model of a name in each repository that has it, by its namespace.
    fn find(&self, polled: &mut Polled, name: &str) -> Vec<(String, Result<ModelFiles, Error>)> {
        let (mut found, mut unasked) = (Vec::new(), Vec::new());
        for repository in &self.options().repositories {
            let directory = repository.join(name);
            if directory.exists() {
                found.push((self.namespace(repository), Ok(ModelFiles::Directory(directory))));
            }
        }
        for seen in &self.seen {
            let repository = &seen.repository;
            match repository.list(Some(name)) {
                Ok(models) => {
                    models.keys().for_each(|name| seen.saw(name));
                    found.extend(models.into_iter().map(|(name, files)| {
                        (self.remote_namespace(repository), remote_model(repository, name, files))
                    }))
                }
                Err(error) => {
                    let text = format!("failed to poll model repository '{}': {}", repository.address(), error.message);
                    unasked.push(Error::internal(text));
                }
            }
        }
        for error in unasked {
            // What lies elsewhere is loaded from there.
            match found.is_empty() {
                true => polled.fail(error),
                false => tracing::warn!("{}; '{name}' lies in another one", error.message),
            }
        }
        found
    }

    fn read(
        &self,
        polled: &mut Polled,
        known: &Sources,
        directories: BTreeMap<Identifier, Result<ModelFiles, Error>>,
        parameters: &LoadParameters,
    ) {
        for (id, files) in directories {
            let directory = files.as_ref().ok().and_then(|files| files.directory().map(Path::to_owned));
            match files.and_then(|files| self.loader.read_source(&id, files, parameters, known.get(&id))) {
                Ok(Some(source)) => {
                    polled.changed.insert(id, source);
                }
                Ok(None) => {
                    polled.unchanged.insert(id);
                }
                Err(error) => {
                    let text = format!("Poll failed for model directory '{id}': {}", error.message);
                    polled.fail(Error { message: text, ..error.clone() });
                    if let Some(hint) = directory.as_deref().and_then(misplaced) {
                        tracing::error!("{hint}");
                    }
                    // What was loaded before serves on.
                    if known.contains_key(&id) {
                        polled.unchanged.insert(id.clone());
                    }
                    polled.unread.insert(id, error);
                }
            }
        }
    }
}

fn remote_model(
    repository: &Arc<dyn RemoteRepository>,
    name: String,
    files: Result<Vec<RemoteFile>, Error>,
) -> Result<ModelFiles, Error> {
    Ok(ModelFiles::Remote(RemoteModel { repository: repository.clone(), name, files: files?.into() }))
}

impl Polled {
    fn not_unique(&mut self, id: Identifier) {
        self.fail(Error::internal(format!("failed to poll model '{id}': not unique across all model repositories")));
        self.removed.insert(id);
    }

    /// A model is not there that a client asks for, or that an ensemble uses.
    fn missing_member(&mut self, name: &str, user: Option<&str>, why: &str) {
        tracing::error!("failed to poll model '{name}': {why}");
        // Triton's client hears of the model that it asked for that it could not be polled, and no more. Who asked for an
        // ensemble cannot know which member is meant.
        let text = user.map_or(String::new(), |user| {
            format!("failed to poll model '{name}', which ensemble '{user}' uses: {why}")
        });
        self.errors.push(Error::not_found(text));
    }

    fn fail(&mut self, error: Error) {
        tracing::error!("{}", error.message);
        self.errors.push(error);
    }
}

/// What a person who has put a model in the wrong place wants to know; `None` where its folder holds a
/// folder with a version's number.
fn misplaced(directory: &Path) -> Option<String> {
    let entries = std::fs::read_dir(directory).ok()?;
    let names: Vec<String> = entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    if names.iter().any(|name| name.parse::<i64>().is_ok() && directory.join(name).is_dir()) {
        return None;
    }
    let name = directory.file_name().unwrap_or_default().to_string_lossy();
    // The model's own folder was given as the repository: what looks like a model is one of its versions.
    let (repository, model) = match (name.parse::<i64>(), directory.parent().and_then(Path::parent)) {
        (Ok(_), Some(repository)) => {
            let model = directory.parent().and_then(Path::file_name).unwrap_or_default().to_string_lossy().into_owned();
            (repository.display().to_string(), model)
        }
        _ => (directory.parent()?.display().to_string(), name.into_owned()),
    };
    Some(format!(
        "'{}' holds no folder with a version's number. A model's file lies in REPOSITORY/MODEL/VERSION/, as \
         {repository}/{model}/1/model.onnx with --model-repository {repository}",
        directory.display()
    ))
}
