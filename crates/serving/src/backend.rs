//! What a backend is: it loads models, and models make instances that run batches.

use std::{collections::BTreeMap, fmt, path::PathBuf, sync::Arc, time::Duration};

pub use crate::instance::{
    batch::{Batch, Gathered},
    sender::ResponseSender,
};
use crate::{
    config::{Completion, ModelConfig},
    error::Error,
};

/// A way to run models. Known to the server by its name, which configurations give as `backend`.
pub trait Backend: Send + Sync {
    /// The name in configurations.
    fn name(&self) -> &str;

    /// Completes and checks a prepared configuration against the model and loads it. Called once per
    /// version, on a thread that may block.
    ///
    /// # Errors
    /// The files are missing or wrong, or the configuration does not fit the model.
    fn load(&self, context: &ModelContext) -> Result<LoadedModel, Error>;
}

/// What a backend is told about a model that it is to load.
#[derive(Debug, Clone)]
pub struct ModelContext {
    /// The configuration, prepared but not completed from the model.
    pub config: ModelConfig,
    /// How the configuration is to be completed.
    pub options: crate::config::Options,
    /// The model's directory.
    pub directory: PathBuf,
    /// The version, whose files lie in `directory/version`.
    pub version: i64,
    /// The server's settings for the backend.
    pub settings: BTreeMap<String, String>,
}

impl ModelContext {
    /// The directory of the version.
    pub fn version_directory(&self) -> PathBuf {
        self.directory.join(self.version.to_string())
    }
}

/// A model that was loaded.
pub struct LoadedModel {
    /// The complete configuration, and what was assumed for it.
    pub completion: Completion,
    /// The model.
    pub model: Arc<dyn Model>,
}

impl fmt::Debug for LoadedModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LoadedModel").field("completion", &self.completion).finish_non_exhaustive()
    }
}

/// One version of a model, shared by its instances.
pub trait Model: Send + Sync {
    /// Makes an instance; `index` counts the instances of the model. Called again after an instance
    /// panicked.
    fn instance(&self, index: usize) -> Result<Box<dyn Instance>, Error>;

    /// Whether requests find what they need. False for example while a process of the model is started again.
    fn is_ready(&self) -> bool {
        true
    }

    /// How much work its operators did in the runs that were measured, and in what time; nothing where the
    /// backend does not know.
    fn operator_work(&self) -> Vec<OperatorWork> {
        Vec::new()
    }

    /// How far it is tuned; `None` where it is not.
    fn tuning_work(&self) -> Option<TuningWork> {
        None
    }
}

/// How far a model is tuned while it serves.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct TuningWork {
    /// Whether it waits for that, or it is being done.
    pub is_active: bool,
    /// Operators that were measured.
    pub tuned: usize,
    /// Operators that are still to be measured, where those are known.
    pub waiting: usize,
    /// Operators for which something faster was found.
    pub won: usize,
    /// How long was measured.
    pub time: Duration,
}

/// Work of all operators of a kind in the runs that were measured.
#[derive(Debug, Clone, PartialEq)]
pub struct OperatorWork {
    /// The kind of operator, such as `Conv`.
    pub operator: String,
    /// What its products multiply: `bf16`, `int8`, or numbers `as stored`.
    pub factors: &'static str,
    /// Wall time.
    pub time: Duration,
    /// Multiplications and additions.
    pub operations: f64,
    /// Bytes read and written at least, each tensor once.
    pub bytes: f64,
}

/// What runs batches, one at a time.
pub trait Instance: Send {
    /// Runs the requests of `batch` and leaves an output or an error in each. A panic is answered with an
    /// error and ends the instance, not the server.
    fn execute(&mut self, batch: &mut Batch);
}
