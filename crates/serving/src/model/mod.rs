//! One version of a model that serves requests.

mod batch_io;
mod classification;
mod labels;
mod sequence;
mod signature;
#[cfg(test)]
mod tests;
mod validate;

use std::{
    any::Any,
    fmt,
    sync::{
        Arc,
        mpsc::{self, RecvTimeoutError},
    },
    thread,
    time::{Duration, Instant},
};

use parking_lot::{Mutex, RwLock};

pub(crate) use batch_io::{BatchInput, Item, Source};
pub(crate) use classification::classify;
pub(crate) use labels::read_labels;
pub(crate) use sequence::SequenceSpec;
pub(crate) use signature::Signature;
pub(crate) use validate::shape_text;

use crate::{
    backend::{ModelMemory, OperatorWork, TuningWork},
    cache::ModelCache,
    config::ModelConfig,
    ensemble::Ensemble,
    error::Error,
    instance::Runner,
    metadata::{ModelMetadata, TensorMetadata},
    request::Request,
    statistics::{Recorder, time_first_response},
    trace::Trace,
    wire::datatype_name,
};

/// One version of a model. When the last owner lets go of it, its requests are answered, its instances
/// end, and whoever waits for that is told.
pub(crate) struct Model {
    /// The version.
    pub version: i64,
    /// What requests must fit.
    pub signature: Arc<Signature>,
    /// What happens to requests.
    pub recorder: Arc<Recorder>,
    config: RwLock<Arc<ModelConfig>>,
    execution: Option<Execution>,
    /// What may answer instead.
    cache: Option<Arc<ModelCache>>,
    /// Keeps the files as long as instances may read them.
    files: Option<Arc<dyn Any + Send + Sync>>,
    on_unloaded: Mutex<Option<Box<dyn FnOnce() + Send>>>,
}

/// How requests are run.
#[derive(Debug)]
pub(crate) enum Execution {
    /// By instances of the model.
    Runner(Runner),
    /// By other models.
    Ensemble(Ensemble),
}

impl Model {
    pub fn new(
        version: i64,
        config: ModelConfig,
        signature: Arc<Signature>,
        recorder: Arc<Recorder>,
        execution: Execution,
        cache: Option<Arc<ModelCache>>,
    ) -> Self {
        Self {
            version,
            signature,
            recorder,
            config: RwLock::new(Arc::new(config)),
            execution: Some(execution),
            cache,
            files: None,
            on_unloaded: Mutex::new(None),
        }
    }

    /// The model with the owner of its files.
    pub fn with_files(self, files: Option<Arc<dyn Any + Send + Sync>>) -> Self {
        // `self` cannot be taken apart: it has a destructor.
        let mut model = self;
        model.files = files;
        model
    }

    /// Whether the configuration asks for answers from a cache.
    pub fn wants_cache(&self) -> bool {
        wants_cache(&self.config())
    }

    /// Whether requests find what they need.
    pub fn is_ready(&self) -> bool {
        match &self.execution {
            Some(Execution::Runner(runner)) => runner.is_ready(),
            Some(Execution::Ensemble(_)) | None => true,
        }
    }

    /// What is known of the speed of the operators.
    pub fn operator_work(&self) -> Vec<OperatorWork> {
        match &self.execution {
            Some(Execution::Runner(runner)) => runner.operator_work(),
            Some(Execution::Ensemble(_)) | None => Vec::new(),
        }
    }

    /// Where the model's memory goes.
    pub fn memory(&self) -> Option<ModelMemory> {
        match &self.execution {
            Some(Execution::Runner(runner)) => runner.memory(),
            Some(Execution::Ensemble(_)) | None => None,
        }
    }

    /// How far the model is tuned.
    pub fn tuning_work(&self) -> Option<TuningWork> {
        match &self.execution {
            Some(Execution::Runner(runner)) => runner.tuning_work(),
            Some(Execution::Ensemble(_)) | None => None,
        }
    }

    /// Calls `then` once the last owner let go of the model and its instances ended.
    pub fn on_unloaded(&self, then: impl FnOnce() + Send + 'static) {
        *self.on_unloaded.lock() = Some(Box::new(then));
    }

    /// Lets go of the model. If nobody else owns it and it is idle, its instances have ended when this returns,
    /// so that a server whose idle model was unloaded is ready again at once. Otherwise they end behind the
    /// caller's back. For threads that own the model and are none of its own.
    pub fn end(self: Arc<Self>) {
        // The only owner: no request can come any more.
        if let Some(mut model) = Arc::into_inner(self)
            && model.in_flight() == 0
        {
            model.take_down()();
        }
    }

    /// What ends the instances and then tells whoever waits for that.
    fn take_down(&mut self) -> impl FnOnce() + Send + 'static {
        let (execution, then) = (self.execution.take(), self.on_unloaded.get_mut().take());
        let files = self.files.take();
        let (name, version) = (self.signature.model.clone(), self.version);
        move || {
            let watched = watch(name, version);
            drop(execution);
            drop(watched);
            drop(files);
            if let Some(then) = then {
                then();
            }
        }
    }

    /// Checks a request and runs it; the answer goes through its responder in any case.
    pub fn infer(self: &Arc<Self>, mut request: Request) {
        let checked = request.check_sequence_id();
        let batch_size = match checked.and_then(|()| self.signature.prepare(&mut request)) {
            Ok(batch_size) => batch_size,
            Err(error) => return request.refuse(self.version, error),
        };
        Trace::begin(&mut request, self.version);
        if self.recorder.first_responses().is_some() {
            time_first_response(self.recorder.clone(), request.timestamps.start, &mut request.responder);
        }
        match &self.cache {
            None => self.run(request, batch_size),
            Some(cache) => {
                let model = self.clone();
                cache.answer(request, move |request| model.run(request, batch_size));
            }
        }
    }

    fn run(self: &Arc<Self>, request: Request, batch_size: usize) {
        match &self.execution {
            Some(Execution::Runner(runner)) => runner.infer(request, batch_size),
            Some(Execution::Ensemble(ensemble)) => ensemble.infer(self, request, batch_size),
            None => request.fail(self.version, Error::internal("the model is being unloaded")),
        }
    }

    /// Requests that are not answered yet.
    pub fn in_flight(&self) -> usize {
        let asking = self.cache.as_ref().map_or(0, |cache| cache.in_flight());
        asking + self.running()
    }

    fn running(&self) -> usize {
        match &self.execution {
            Some(Execution::Runner(runner)) => runner.in_flight(),
            Some(Execution::Ensemble(ensemble)) => ensemble.in_flight(),
            None => 0,
        }
    }

    /// Refuses new requests.
    pub fn stop(&self) {
        match &self.execution {
            Some(Execution::Runner(runner)) => runner.stop(),
            Some(Execution::Ensemble(ensemble)) => ensemble.stop(),
            None => {}
        }
    }

    /// The configuration.
    pub fn config(&self) -> Arc<ModelConfig> {
        self.config.read().clone()
    }

    /// Takes a configuration that differs in its instance groups alone. With `waits`, instances that are not wanted any
    /// more have ended when this returns.
    pub fn update_instances(&self, config: ModelConfig, waits: bool) -> Result<(), Error> {
        if let Some(Execution::Runner(runner)) = &self.execution {
            runner.resize(&config.instance_group, waits)?;
        }
        *self.config.write() = Arc::new(config);
        Ok(())
    }

    /// What the model says about itself; `versions` are those that are ready.
    pub fn metadata(&self, versions: Vec<i64>) -> ModelMetadata {
        let config = self.config();
        let is_batched = self.signature.is_batched();
        let tensor = |name: &String, dtype, dims: &[i64]| TensorMetadata {
            name: name.clone(),
            datatype: datatype_name(dtype),
            shape: if is_batched { [&[-1], dims].concat() } else { dims.to_vec() },
        };
        ModelMetadata {
            name: config.name.clone(),
            versions,
            platform: if config.platform.is_empty() { config.backend.clone() } else { config.platform.clone() },
            inputs: self.signature.inputs.iter().map(|io| tensor(&io.name, io.dtype, &io.dims)).collect(),
            outputs: self.signature.outputs.iter().map(|io| tensor(&io.name, io.dtype, &io.dims)).collect(),
        }
    }
}

/// How long a model may take to end before the log says so; then again after twice as long each time.
const TOLD_AFTER: Duration = Duration::from_secs(10);

/// Whether a configuration asks for answers from a cache.
pub(crate) fn wants_cache(config: &ModelConfig) -> bool {
    config.response_cache.as_ref().is_some_and(|cache| cache.enable)
}

/// Says of a model that ends how long that takes, until what this returns is dropped.
fn watch(name: String, version: i64) -> mpsc::Sender<()> {
    let (watched, ended) = mpsc::channel();
    let work = move || {
        let (mut pause, start) = (TOLD_AFTER, Instant::now());
        // Nothing is sent.
        while let Err(RecvTimeoutError::Timeout) = ended.recv_timeout(pause) {
            tracing::warn!(
                "model '{name}' version {version} is unloaded, and has not ended after {} s: it has not answered its requests, or \
                 has not finished what it does at its end",
                start.elapsed().as_secs()
            );
            pause *= 2;
        }
    };
    // Without a thread nothing is said.
    drop(thread::Builder::new().name("unload-watch".to_owned()).spawn(work));
    watched
}

impl Drop for Model {
    fn drop(&mut self) {
        if self.execution.is_none() {
            return;
        }
        // The last owner may be one of the threads that ending the instances waits for, so that another
        // thread has to wait. Without one the instances end when their requests are answered, unwatched.
        let unload = self.take_down();
        let name = format!("{}-unload", self.signature.model).replace('\0', "_");
        drop(thread::Builder::new().name(name).spawn(unload));
    }
}

impl fmt::Debug for Model {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Model").field("name", &self.signature.model).field("version", &self.version).finish()
    }
}
