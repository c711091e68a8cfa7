//! What a backend is: it loads models, and models make instances that run batches.

use std::{
    collections::BTreeMap,
    fmt,
    path::PathBuf,
    sync::{Arc, Weak},
    time::Duration,
};

use crate::{
    admission::{Admission, MemoryNeed, Promise},
    config::{Completion, ModelConfig},
    ensemble::Members,
    error::Error,
    metrics::CustomMetrics,
    options::LoadParameters,
    repository::ModelControl,
    request::Request,
};
pub use crate::{
    instance::{
        batch::{Batch, Gathered},
        sender::ResponseSender,
        submitted::Submitted,
    },
    repository::Asker,
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
    /// The folder of a Python-based backend, whose `model.py` runs the model; `None` for a model that brings its own.
    pub backend_directory: Option<PathBuf>,
    /// The server's settings for the backend.
    pub settings: BTreeMap<String, String>,
    /// The models that this one may call.
    pub peers: Peers,
    /// Where the model may have metrics of its own.
    pub metrics: CustomMetrics,
    /// Who is asked before memory is taken; `None`: nobody.
    pub admission: Option<Admission>,
}

/// The models of a server, for a model that calls others.
#[derive(Clone, Default)]
pub struct Peers {
    pub(crate) members: Option<Weak<dyn Members>>,
    pub(crate) control: Option<Weak<dyn ModelControl>>,
}

impl Peers {
    /// Takes a request and answers it through its responder, in any case.
    pub fn infer(&self, mut request: Request) {
        match self.model(&request.model, request.version) {
            Ok(model) => {
                // Never on this thread, which may be the one that the answer is for.
                request.compute_total.get_or_insert_default();
                model.infer(request);
            }
            Err(error) => request.refuse(0, error),
        }
    }

    /// Whether a version of a model takes requests, and answers them with any number of responses.
    ///
    /// # Errors
    /// There is no such version that is ready.
    pub fn is_decoupled(&self, model: &str, version: Option<i64>) -> Result<bool, Error> {
        self.model(model, version).map(|model| model.signature.is_decoupled)
    }

    /// Whether a version of a model takes requests; `None` is the newest.
    pub fn is_ready(&self, model: &str, version: Option<i64>) -> bool {
        self.model(model, version).is_ok_and(|model| model.is_ready())
    }

    /// Loads a model, as [`Server::load`](crate::Server::load) does.
    ///
    /// # Errors
    /// It does not load, or models are not loaded by request.
    pub fn load(&self, model: &str, parameters: &LoadParameters, asker: Asker<'_>) -> Result<(), Error> {
        self.control()?.load(model, parameters, asker)
    }

    /// Unloads a model, as [`Server::unload`](crate::Server::unload) does.
    ///
    /// # Errors
    /// Models are not unloaded by request.
    pub fn unload(&self, model: &str, dependents: bool, asker: Asker<'_>) -> Result<(), Error> {
        self.control()?.unload(model, dependents, asker)
    }

    fn control(&self) -> Result<Arc<dyn ModelControl>, Error> {
        self.control.as_ref().and_then(Weak::upgrade).ok_or_else(|| Error::unavailable("Server not ready"))
    }

    fn model(&self, model: &str, version: Option<i64>) -> Result<Arc<crate::model::Model>, Error> {
        let members = self.members.as_ref().and_then(Weak::upgrade);
        members.ok_or_else(|| Error::unavailable("Server not ready"))?.model(model, version)
    }
}

impl fmt::Debug for Peers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Peers").finish_non_exhaustive()
    }
}

impl ModelContext {
    /// The directory of the version.
    pub fn version_directory(&self) -> PathBuf {
        self.directory.join(self.version.to_string())
    }

    /// Asks for memory that the model is about to take; the answer is kept until it has it.
    ///
    /// # Errors
    /// There is not enough.
    pub fn promise(&self, need: &MemoryNeed) -> Result<Option<Promise>, Error> {
        let admission = self.admission.as_ref();
        admission.map(|admission| admission.promise(&self.config.name, need)).transpose()
    }
}

/// A model that was loaded.
pub struct LoadedModel {
    /// The complete configuration, and what was assumed for it.
    pub completion: Completion,
    /// The model.
    pub model: Arc<dyn Model>,
}

impl LoadedModel {
    /// A model whose configuration says everything.
    pub fn as_configured(config: ModelConfig, model: Arc<dyn Model>) -> Self {
        Self { completion: Completion { config, assumptions: Vec::new() }, model }
    }
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

    /// Where its memory goes; `None` where the backend does not know.
    fn memory(&self) -> Option<ModelMemory> {
        None
    }

    /// How far it is tuned; `None` where it is not.
    fn tuning_work(&self) -> Option<TuningWork> {
        None
    }
}

/// Where the memory of a model goes, in bytes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ModelMemory {
    /// The least that it needs: its weights in the datatypes that they are multiplied in.
    pub weights: usize,
    /// What it holds for all its instances.
    pub parts: Vec<MemoryPart>,
    /// What instances hold for themselves by their index, of those that have run.
    pub instances: Vec<(usize, usize)>,
}

/// Memory of one kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryPart {
    /// What it is for, such as `packed`.
    pub name: &'static str,
    /// Bytes of this process alone.
    pub private: usize,
    /// Bytes in mapped files, whose pages all processes share.
    pub mapped: usize,
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

    /// What takes batches of this instance without a thread that waits for it; `None` where a batch is work of the
    /// thread that brings it.
    fn queue(&self) -> Option<Arc<dyn Submit>> {
        None
    }
}

/// Bytes of inputs of a batch that another one may be submitted behind ([`Submit::takes_ahead`]). What answers a larger one is
/// read before the next begins.
pub const LED_BYTES_MAX: usize = 256 << 10;

/// Takes batches that run elsewhere, such as in another process. The thread that has a batch submits it and goes on;
/// whoever hears of the results finishes it.
pub trait Submit: Send + Sync {
    /// Whether a batch could be submitted now. One that cannot is executed ([`Instance::execute`]), which may wait.
    fn is_ready(&self) -> bool;

    /// Whether one batch more may be submitted while another runs. It begins when that ends, and says how long it ran
    /// ([`Submitted::ran_for`]); where it cannot begin, it is given back ([`Submitted::give_back`]). Behind a batch with inputs
    /// of more than [`LED_BYTES_MAX`] there is none.
    fn takes_ahead(&self) -> bool {
        false
    }

    /// Begins with a batch. Does not wait for anything.
    ///
    /// # Errors
    /// It could not begin; the batch is given back, to be answered with the error.
    fn submit(&self, batch: Submitted) -> Result<(), (Submitted, Error)>;
}
