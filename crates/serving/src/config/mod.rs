//! Model configurations: reading, completing, checking and printing `config.pbtxt`.
//!
//! The way of a configuration, from the repository to the client:
//!
//! 1. [`parse`] reads `config.pbtxt`, or [`parse_override`] the JSON of a load request; a model without
//!    either starts from `ModelConfig::default()`.
//! 2. [`prepare`] fills what files and defaults tell and checks what can be checked without the model.
//! 3. [`finish`] fills what the model tells ([`ModelFacts`]), checks the whole, and refuses what this
//!    server does not do. An ensemble has no model: [`ensemble::validate_members`] compares it with its
//!    members instead.
//! 4. [`to_json`] prints what clients fetch.
//!
//! Fields, defaults, texts and their order are Triton's; the reference is its version 2.51.

/// Returns early with [`Error::invalid`] and a formatted text.
macro_rules! invalid {
    ($($format:tt)*) => {
        return Err($crate::Error::invalid(format!($($format)*)))
    };
}

mod complete;
mod dtype;
pub mod ensemble;
mod json;
mod normalize;
mod parameters;
pub mod proto;
mod suggest;
mod support;
mod text;
mod validate;

#[cfg(test)]
mod tests;

use std::{collections::BTreeSet, path::Path};

use prost_reflect::DynamicMessage;

use crate::{Error, LOG_UNESCAPED};

pub use self::complete::{
    Assumption, Batching, Completion, DEFAULT_MAX_BATCH_SIZE, Entry, IoFacts, IoKind, ModelFacts, VersionFiles,
    check_against_model, complete_backend, complete_from_model,
};
pub use self::normalize::{full_shape, normalize, normalize_instance_groups};
pub use self::parameters::{OnnxParameters, Tune, UnknownTune};
pub use self::proto::{DataType, ModelConfig};
pub use self::support::{ServerParts, check_runtime, check_supported, ignored, unsupported};
pub(crate) use self::text::NOT_UTF8;
pub use self::validate::{validate, validate_instance_groups, validate_io};

/// The GPUs that instances may be placed on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Gpus {
    /// The server has no support for GPUs.
    Unsupported,
    /// Their numbers; empty where the machine has none.
    Ids(BTreeSet<i32>),
}

impl Gpus {
    fn ids(&self) -> &BTreeSet<i32> {
        static NONE: BTreeSet<i32> = BTreeSet::new();
        match self {
            Self::Unsupported => &NONE,
            Self::Ids(ids) => ids,
        }
    }
}

/// Settings of the server that decide how configurations are completed.
#[derive(Debug, Clone)]
pub struct Options {
    /// Fill from the model what the configuration lacks (off with `--disable-auto-complete-config`).
    pub auto_complete: bool,
    /// `--backend-config=onnxruntime,default-max-batch-size=N`.
    pub default_max_batch_size: i32,
    /// The GPUs of the server.
    pub gpus: Gpus,
}

impl Default for Options {
    fn default() -> Self {
        Self { auto_complete: true, default_max_batch_size: DEFAULT_MAX_BATCH_SIZE, gpus: Gpus::Unsupported }
    }
}

/// Reads the text of the file `path`. What is wrong is also told to the log.
///
/// # Errors
/// Names file, line, column and field; for an unknown name, the nearest one that exists.
pub fn parse(text: &str, path: &Path) -> Result<ModelConfig, Error> {
    let message = text::parse_message(text, proto::model_config_descriptor()).map_err(|error| {
        let (line, column) = text::line_and_column(text, error.offset);
        let (path, what) = (path.display(), error.message);
        // As protobuf itself tells it.
        tracing::error!(target: LOG_UNESCAPED, "Error parsing text-format inference.ModelConfig: {line}:{column}: {what}");
        // Triton's text goes up to the path.
        Error::internal(format!("failed to read text proto from {path}: line {line}, column {column}: {what}"))
    })?;
    typed(&message)
}

/// Reads the JSON form of a configuration. Protocol names and lowerCamelCase names are accepted.
pub fn parse_json(text: &str) -> Result<ModelConfig, Error> {
    json::read_message(text, proto::model_config_descriptor())
        .map_err(Error::invalid)
        .and_then(|message| typed(&message))
}

/// Reads the parameter `config` of a load request.
pub fn parse_override(text: &str) -> Result<ModelConfig, Error> {
    parse_json(text).map_err(|error| Error::invalid(format!("Invalid config override: {}", error.message)))
}

/// The configuration as `GET /v2/models/{model}/config` prints it: one line, every field but unset
/// messages.
pub fn to_json(config: &ModelConfig) -> String {
    json::write_message(&dynamic(config))
}

/// The configuration as a `config.pbtxt` that [`parse`] reads back.
pub fn to_text(config: &ModelConfig) -> String {
    text::print_message(&dynamic(config))
}

/// Fills and checks what can be without the model. `directory` is the name of the model's directory,
/// `config` what was parsed, or `ModelConfig::default()` where there is nothing to parse.
pub fn prepare(
    mut config: ModelConfig,
    directory: &str,
    files: &VersionFiles,
    options: &Options,
) -> Result<ModelConfig, Error> {
    complete_backend(&mut config, directory, files)?;
    normalize(&mut config);
    validate(&config)?;
    if !options.auto_complete {
        validate_io(&config)?;
    }
    if config.name != directory {
        return Err(Error::invalid(format!(
            "unexpected directory name '{directory}' for model '{}', directory name must equal model name",
            config.name
        )));
    }
    Ok(config)
}

/// Fills and checks the instance groups, for which the backend must be known and the model need not.
pub fn prepare_instance_groups(mut config: ModelConfig, options: &Options) -> Result<ModelConfig, Error> {
    normalize_instance_groups(&mut config, &options.gpus);
    validate_instance_groups(&config, &options.gpus)?;
    Ok(config)
}

/// Fills from the model what a prepared configuration lacks and checks the whole against it. For
/// backends that have no model file to look into, use [`finish_without_model`].
pub fn finish(config: ModelConfig, facts: &ModelFacts, options: &Options) -> Result<Completion, Error> {
    let config = prepare_instance_groups(config, options)?;
    let completion = if options.auto_complete {
        complete_from_model(config, facts, options.default_max_batch_size)?
    } else {
        Completion { config, assumptions: Vec::new() }
    };
    let config = &completion.config;
    validate(config)?;
    validate_io(config)?;
    check_supported(config)?;
    check_against_model(config, facts)?;
    Ok(completion)
}

/// Fills the instance groups and checks the whole where there is no model to compare with: ensembles
/// and built-in backends.
pub fn finish_without_model(config: ModelConfig, options: &Options) -> Result<ModelConfig, Error> {
    let config = prepare_instance_groups(config, options)?;
    validate(&config)?;
    validate_io(&config)?;
    check_supported(&config)?;
    Ok(config)
}

fn typed(message: &DynamicMessage) -> Result<ModelConfig, Error> {
    // Both types come from one schema; only a nesting deeper than prost allows could fail, and the
    // schema is flat.
    message.transcode_to().map_err(|error| Error::internal(error.to_string()))
}

fn dynamic(config: &ModelConfig) -> DynamicMessage {
    let mut message = DynamicMessage::new(proto::model_config_descriptor());
    message.transcode_from(config).expect("the descriptor and the type come from one schema");
    message
}
