//! What the repository says about a model, before it is loaded.

use std::{fs, sync::Arc, time::SystemTime};

use super::{
    files::ModelFiles,
    load::Loader,
    scan::{SentDirectory, Timestamps},
    table::Identifier,
};
use crate::{
    config::{self, ModelConfig},
    error::Error,
    options::LoadParameters,
    paths::is_inside,
};

/// A model as it lies in the repository, or as a client sent it.
#[derive(Debug, Clone)]
pub(super) struct Source {
    pub files: ModelFiles,
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
}

impl Loader {
    /// Reads a model. `None` where nothing changed since `known`.
    pub(super) fn read_source(
        &self,
        id: &Identifier,
        files: ModelFiles,
        parameters: &LoadParameters,
        known: Option<&Source>,
    ) -> Result<Option<Source>, Error> {
        let loaded = known.map(|source| source.loaded.clone()).unwrap_or_default();
        if !parameters.files.is_empty() {
            let files = ModelFiles::Sent(Arc::new(write_files(parameters)?));
            let config = self.prepare(id, &files, parameters)?;
            let timestamps = files.timestamps(&self.options.model_config_name);
            return Ok(Some(Source { files, config, timestamps, loaded, explicit: false, is_sent: true }));
        }
        let mut timestamps = files.timestamps(&self.options.model_config_name);
        let is_unmodified = known.is_some_and(|known| !known.is_sent && !known.timestamps.is_modified(&timestamps));
        if parameters.config.is_some() {
            timestamps.set_config_time(SystemTime::now());
        } else if is_unmodified {
            return Ok(None);
        }
        let config = self.prepare(id, &files, parameters)?;
        Ok(Some(Source { files, config, timestamps, loaded, explicit: false, is_sent: false }))
    }

    fn prepare(&self, id: &Identifier, files: &ModelFiles, parameters: &LoadParameters) -> Result<ModelConfig, Error> {
        let config = match &parameters.config {
            Some(json) => config::parse_override(json)?,
            None => {
                let options = &self.options;
                match files.read_config(&options.model_config_name, options.auto_complete_config)? {
                    Some((text, path)) => config::parse(&text, &path)?,
                    None => ModelConfig::default(),
                }
            }
        };
        config::prepare(config, &id.name, &files.version_files()?, &self.config_options("")?)
    }
}

/// Writes the files that a client sent into a new directory.
fn write_files(parameters: &LoadParameters) -> Result<SentDirectory, Error> {
    if parameters.config.is_none() {
        return Err(Error::invalid("Load parameter 'config' must be specified for model file override"));
    }
    let failed =
        |error: std::io::Error| Error::internal(format!("cannot write the files of the load request: {error}"));
    let directory = SentDirectory::new().map_err(failed)?;
    for (name, data) in &parameters.files {
        let path = directory.path.join(name);
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
