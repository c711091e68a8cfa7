//! What the repository says about a model, before it is loaded.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
    time::SystemTime,
};

use super::{
    load::Loader,
    scan::{self, TemporaryDirectory, Timestamps},
    table::Identifier,
};
use crate::{
    config::{self, ModelConfig, VersionFiles},
    error::Error,
    options::LoadParameters,
    paths::is_inside,
};

/// A model as it lies in the repository, or as a client sent it.
#[derive(Debug, Clone)]
pub(super) struct Source {
    pub directory: PathBuf,
    /// The prepared configuration.
    pub config: ModelConfig,
    /// When its files changed.
    pub timestamps: Timestamps,
    /// The timestamps of the last load that succeeded.
    pub loaded: Timestamps,
    /// Whether a client asked for the model itself, and not only for an ensemble that uses it.
    pub explicit: bool,
    /// Whether a client sent the files: the next load undoes that. A configuration that a client sent stays
    /// until the repository changes, as in Triton.
    pub is_sent: bool,
    /// Where the files lie that a client sent.
    _files: Option<Arc<TemporaryDirectory>>,
}

impl Loader {
    /// Reads a model. `None` where nothing changed since `known`.
    pub(super) fn read_source(
        &self,
        id: &Identifier,
        directory: &Path,
        parameters: &LoadParameters,
        known: Option<&Source>,
    ) -> Result<Option<Source>, Error> {
        let loaded = known.map(|source| source.loaded.clone()).unwrap_or_default();
        if !parameters.files.is_empty() {
            let files = Arc::new(write_files(parameters)?);
            let config = self.prepare(id, &files.0, parameters)?;
            // With timestamps of their own the files would hide a change in the repository.
            let timestamps = Timestamps::default();
            let directory = files.0.clone();
            return Ok(Some(Source {
                directory,
                config,
                timestamps,
                loaded,
                explicit: false,
                is_sent: true,
                _files: Some(files),
            }));
        }
        let config_path = scan::config_path(directory, &self.options.model_config_name);
        let mut timestamps = Timestamps::read(directory, &config_path);
        let is_unmodified = known.is_some_and(|known| !known.is_sent && !known.timestamps.is_modified(&timestamps));
        if parameters.config.is_some() {
            timestamps.set_config_time(SystemTime::now());
        } else if is_unmodified {
            return Ok(None);
        }
        let config = self.prepare(id, directory, parameters)?;
        let directory = directory.to_path_buf();
        Ok(Some(Source { directory, config, timestamps, loaded, explicit: false, is_sent: false, _files: None }))
    }

    fn prepare(&self, id: &Identifier, directory: &Path, parameters: &LoadParameters) -> Result<ModelConfig, Error> {
        let path = scan::config_path(directory, &self.options.model_config_name);
        let config = match &parameters.config {
            Some(json) => config::parse_override(json)?,
            None if self.options.auto_complete_config && !path.exists() => ModelConfig::default(),
            None => {
                let text = fs::read_to_string(&path).map_err(|error| {
                    Error::internal(format!("failed to open text file for read {}: {error}", path.display()))
                })?;
                config::parse(&text, &path)?
            }
        };
        let files = VersionFiles::read(directory)
            .map_err(|error| Error::internal(format!("failed to open directory {}: {error}", directory.display())))?;
        config::prepare(config, &id.name, &files, &self.config_options("")?)
    }
}

/// Writes the files that a client sent into a new directory.
fn write_files(parameters: &LoadParameters) -> Result<TemporaryDirectory, Error> {
    if parameters.config.is_none() {
        return Err(Error::invalid("Load parameter 'config' must be specified for model file override"));
    }
    let failed =
        |error: std::io::Error| Error::internal(format!("cannot write the files of the load request: {error}"));
    let directory = TemporaryDirectory::new().map_err(failed)?;
    for (name, data) in &parameters.files {
        let path = directory.0.join(name);
        if !is_inside(name) || name.is_empty() {
            return Err(Error::invalid(format!(
                "Invalid file parameter 'file:{name}' with normalized path '{}' must stay within model directory.",
                path.display()
            )));
        }
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent).map_err(|error| match parent.is_file() {
                true => Error::invalid(format!(
                    "Invalid file parameter 'file:{name}', directory has been created as a file"
                )),
                false => failed(error),
            })?;
        }
        fs::write(&path, &**data).map_err(failed)?;
    }
    Ok(directory)
}
