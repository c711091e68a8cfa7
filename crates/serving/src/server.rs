//! The façade that protocols call.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{
            AtomicBool, AtomicU64,
            Ordering::{Relaxed, SeqCst},
        },
        mpsc::{self, RecvTimeoutError, Sender},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use parking_lot::Mutex;

use crate::{
    config::ModelConfig,
    error::Error,
    metadata::{IndexEntry, ModelMetadata, ServerMetadata},
    metrics::Family,
    options::{ControlMode, LoadParameters, Options},
    repository::{Asker, Repository, overview::ModelOverview},
    request::Request,
    statistics::ModelStatistics,
};

/// The version of the protocol implementation that the server reports.
pub const VERSION: &str = "2.51.0";

/// The extensions of the protocol that the server speaks.
const EXTENSIONS: [&str; 13] = [
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
    "trace",
    "logging",
];

/// A running server: the repository, its models and their instances. There may be several in a process.
///
/// Every method may be called from any thread. [`Server::infer`], the health methods, metadata,
/// configuration and statistics return at once. [`Server::load`], [`Server::unload`] and
/// [`Server::shutdown`] wait for models, and [`Server::repository_index`] reads directories, so an
/// asynchronous caller gives them a thread that may block.
pub struct Server {
    repository: Arc<Repository>,
    options: Options,
    exiting: AtomicBool,
    /// Whether the server could not start and only says so.
    has_failed: bool,
    /// Requests so far.
    requests: AtomicU64,
    poller: Mutex<Option<Poller>>,
}

/// What is said where models do not end in time.
const TIMED_OUT: &str = "Exit timeout expired. Exiting immediately.";

/// How much longer than its time the end may take before a model is left behind: some ends cannot be hurried.
const OVERTIME: Duration = Duration::from_secs(1);

/// The thread that looks at the repositories again and again.
struct Poller {
    stop: Sender<()>,
    thread: JoinHandle<()>,
}

impl Server {
    /// Reads the repositories and loads the models that the control mode asks for. Without
    /// [`Options::exit_on_error`], a repository that is no directory makes a server that is not live.
    ///
    /// # Errors
    /// No repository; with [`Options::exit_on_error`] also a repository that is no directory, or a model that
    /// does not load.
    pub fn start(options: Options) -> Result<Self, Error> {
        Self::start_and_tell(options, |_| {})
    }

    /// Like [`start`](Self::start); `tell` hears how the models are before the server takes requests, or does not start
    /// because of them.
    ///
    /// # Errors
    /// As those of [`start`](Self::start).
    pub fn start_and_tell(options: Options, tell: impl FnOnce(&[IndexEntry])) -> Result<Self, Error> {
        if options.repositories.is_empty() && options.remote_repositories.is_empty() {
            return Err(Error::invalid("--model-repository must be specified"));
        }
        if let Err(error) = check_repositories(&options) {
            if options.exit_on_error {
                return Err(error);
            }
            tracing::error!("{}", error.message);
            let repository = Repository::new(options.clone());
            let exiting = AtomicBool::new(false);
            return Ok(Self {
                repository,
                options,
                exiting,
                has_failed: true,
                requests: AtomicU64::new(0),
                poller: Mutex::default(),
            });
        }
        let repository = Repository::new(options.clone());
        let loaded = match options.control {
            ControlMode::Explicit => load_startup_models(&repository, &options.startup_models)?,
            ControlMode::None | ControlMode::Poll(_) => repository.poll(),
        };
        tell(&repository.states());
        let exiting = AtomicBool::new(false);
        let server = Self {
            repository,
            options,
            exiting,
            has_failed: false,
            requests: AtomicU64::new(0),
            poller: Mutex::default(),
        };
        let started = if server.options.exit_on_error { loaded } else { Ok(()) };
        if let Err(error) = started.and_then(|()| server.start_poller()) {
            Arc::new(server).end();
            return Err(error);
        }
        server.repository.open_to_models(true);
        Ok(server)
    }

    /// Ends a server that could not begin to serve: its models end as they do at any other end. One that takes longer than
    /// [`Options::exit_timeout`] is left behind.
    pub fn end(self: Arc<Self>) {
        let timeout = self.options.exit_timeout;
        let (sender, ended) = mpsc::channel();
        let shutdown = move || {
            let done = self.shutdown(timeout);
            drop(self);
            // Nobody listens any more only if it took too long.
            let _ = sender.send(done);
        };
        let thread = thread::Builder::new().name("shutdown".to_owned()).spawn(shutdown);
        match thread.map(|_| ended.recv_timeout(timeout + OVERTIME)) {
            Ok(Ok(Ok(()))) => {}
            Ok(Ok(Err(error))) => tracing::error!("{}", error.message),
            Ok(Err(_)) => tracing::error!("{TIMED_OUT}"),
            Err(error) => tracing::error!("cannot start a thread that ends the models: {error}"),
        }
    }

    fn start_poller(&self) -> Result<(), Error> {
        // Triton's server does not look again either, where it is told to do so every 0 seconds.
        if let ControlMode::Poll(interval) = self.options.control
            && !interval.is_zero()
        {
            *self.poller.lock() = Some(Poller::start(self.repository.clone(), interval)?);
        }
        Ok(())
    }

    /// Takes a request and answers it through its responder, in any case: with outputs, or with what is
    /// wrong. Validation errors are sent before this returns.
    pub fn infer(&self, request: Request) {
        self.requests.fetch_add(1, Relaxed);
        // What runs has its memory, and is finished.
        if let Some(error) = self.repository.refuse_request(Instant::now()) {
            return request.refuse(0, error);
        }
        match self.repository.table.get(&request.model, request.version) {
            Ok(model) => model.infer(request),
            // The models of a server that ends are gone, not unknown.
            Err(_) if self.exiting.load(SeqCst) => request.refuse(0, Error::unavailable("Server not ready")),
            Err(error) => request.refuse(0, error),
        }
    }

    /// Whether the server can answer at all.
    pub fn is_live(&self) -> bool {
        !self.is_down()
    }

    /// Whether the server takes requests and, with strict readiness, every model does.
    pub fn is_ready(&self) -> bool {
        !self.is_down() && (!self.options.strict_readiness || self.repository.is_ready())
    }

    /// Whether a version of a model takes requests; `None` is the newest.
    ///
    /// # Errors
    /// The model is unknown or has no such version that is ready, or the server is exiting.
    pub fn model_ready(&self, model: &str, version: Option<i64>) -> Result<bool, Error> {
        self.check_ready()?;
        self.repository.table.get(model, version).map(|model| model.is_ready())
    }

    /// Whether a version of a model answers a request with any number of responses; `None` is the newest. Also while
    /// the server is exiting, for sequences that have begun.
    ///
    /// # Errors
    /// The model is unknown or has no such version that is ready.
    pub fn is_decoupled(&self, model: &str, version: Option<i64>) -> Result<bool, Error> {
        if self.has_failed {
            return Err(Error::unavailable("Server not ready"));
        }
        self.repository.table.get(model, version).map(|model| model.signature.is_decoupled)
    }

    /// What the server says about itself.
    pub fn metadata(&self) -> ServerMetadata {
        ServerMetadata { name: self.options.id.clone(), version: VERSION, extensions: &EXTENSIONS }
    }

    /// What a model says about itself.
    ///
    /// # Errors
    /// The model is unknown or has no such version that is ready.
    pub fn model_metadata(&self, model: &str, version: Option<i64>) -> Result<ModelMetadata, Error> {
        let found = self.repository.table.get(model, version)?;
        let versions = version.map_or_else(|| self.repository.table.ready_versions(model), |version| vec![version]);
        Ok(found.metadata(versions))
    }

    /// The complete configuration of a model; [`config::to_json`](crate::config::to_json) prints it.
    ///
    /// # Errors
    /// The model is unknown or has no such version that is ready.
    pub fn model_config(&self, model: &str, version: Option<i64>) -> Result<Arc<ModelConfig>, Error> {
        self.repository.table.get(model, version).map(|model| model.config())
    }

    /// Statistics of one version, of all ready versions of a model, or of all models (empty name).
    ///
    /// # Errors
    /// The model is unknown or has no such version that is ready.
    pub fn statistics(&self, model: &str, version: Option<i64>) -> Result<Vec<ModelStatistics>, Error> {
        self.check_ready()?;
        // All models have no version in common.
        let version = version.filter(|_| !model.is_empty());
        let mut found: Vec<ModelStatistics> = self.repository.ready_models(model, version).collect();
        if found.is_empty() && !model.is_empty() {
            let is_served = !self.repository.table.ready_versions(model).is_empty();
            return Err(Error::invalid(match is_served {
                true => format!("requested model version is not available for model '{model}'"),
                false => format!("requested model '{model}' is not available"),
            }));
        }
        found.sort_by(|a, b| (&a.name, a.version).cmp(&(&b.name, b.version)));
        Ok(found)
    }

    /// The models of the repositories, those that are ready or all.
    ///
    /// # Errors
    /// The server is exiting, or a repository cannot be read.
    pub fn repository_index(&self, ready_only: bool) -> Result<Vec<IndexEntry>, Error> {
        self.check_ready()?;
        self.repository.index(ready_only)
    }

    /// The versions of models that were ever to be loaded, with their states. Looks at no repository.
    pub fn model_states(&self) -> Vec<IndexEntry> {
        self.repository.states()
    }

    /// Loads a model, or loads it again; the versions that serve now keep serving until the new ones are
    /// ready. Returns when the model is ready or has failed.
    ///
    /// # Errors
    /// The control mode forbids it, there is no such model, or it does not load.
    pub fn load(&self, model: &str, parameters: LoadParameters) -> Result<(), Error> {
        self.check_explicit()?;
        self.repository.load(model, &parameters, Asker::Client)
    }

    /// Unloads a model; with `dependents`, the models that only it uses too. A model that is not loaded is
    /// no error. Requests in flight are answered.
    ///
    /// # Errors
    /// The control mode forbids it.
    pub fn unload(&self, model: &str, dependents: bool) -> Result<(), Error> {
        self.check_explicit()?;
        self.repository.unload(model, dependents, Asker::Client)
    }

    /// The metrics of all models.
    pub fn metrics(&self) -> Vec<Family> {
        self.repository.metrics(Instant::now())
    }

    /// The metrics that models made for themselves.
    pub fn custom_metrics(&self) -> Vec<Family> {
        self.repository.custom_metrics()
    }

    /// All models with everything that is known of them. Reads directories.
    ///
    /// # Errors
    /// The server is exiting, or a repository cannot be read.
    pub fn overview(&self) -> Result<Vec<ModelOverview>, Error> {
        self.check_ready()?;
        self.repository.overview(Instant::now())
    }

    /// What the cache of responses counts; empty where there is none.
    pub fn cache_metrics(&self) -> Vec<Family> {
        self.options.cache.iter().flat_map(|cache| cache.metrics()).collect()
    }

    /// Whether clients may load and unload models.
    pub fn is_explicit(&self) -> bool {
        matches!(self.options.control, ControlMode::Explicit)
    }

    /// Requests that were ever given to [`infer`](Self::infer), whatever became of them.
    pub fn requests(&self) -> u64 {
        self.requests.load(Relaxed)
    }

    /// Requests that are not answered yet.
    pub fn in_flight(&self) -> usize {
        self.repository.models().iter().map(|model| model.in_flight()).sum()
    }

    /// Refuses new requests, waits for those in flight and unloads all models.
    ///
    /// # Errors
    /// Some were still in flight after `timeout`.
    pub fn shutdown(&self, timeout: Duration) -> Result<(), Error> {
        self.exiting.store(true, SeqCst);
        self.repository.open_to_models(false);
        let deadline = Instant::now() + timeout;
        for repository in &self.options.remote_repositories {
            repository.close();
        }
        if let Some(poller) = self.poller.lock().take() {
            poller.stop();
        }
        for model in self.repository.models() {
            model.stop();
        }
        let mut next_log = Instant::now();
        let is_idle = || {
            let now = Instant::now();
            if now >= next_log {
                next_log = now + Duration::from_secs(1);
                self.log_in_flight();
            }
            self.in_flight() == 0
        };
        wait_until(deadline, is_idle)?;
        self.repository.unload_all();
        wait_until(deadline, || self.repository.is_unloaded())
    }

    fn log_in_flight(&self) {
        for model in self.repository.models() {
            let (count, name) = (model.in_flight(), &model.signature.model);
            if count > 0 {
                tracing::info!("Model '{name}' (version {}) has {count} in-flight inferences", model.version);
            }
        }
    }

    /// Instances that wait for their turn.
    #[cfg(test)]
    pub(crate) fn instances_asking(&self) -> usize {
        self.repository.instances_asking()
    }

    fn is_down(&self) -> bool {
        self.has_failed || self.exiting.load(SeqCst)
    }

    fn check_ready(&self) -> Result<(), Error> {
        if self.is_down() { Err(Error::unavailable("Server not ready")) } else { Ok(()) }
    }

    fn check_explicit(&self) -> Result<(), Error> {
        self.check_ready()?;
        self.repository.check_explicit()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(poller) = self.poller.get_mut().take() {
            poller.stop();
        }
    }
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server").field("options", &self.options).finish_non_exhaustive()
    }
}

/// Looks whether all repositories are there.
fn check_repositories(options: &Options) -> Result<(), Error> {
    let is_none = |address: &dyn fmt::Display| {
        Error::invalid(format!(
            "repository path is not a valid directory: {address}. A repository holds one directory per model, such as \
             {address}/digits/1/model.onnx"
        ))
    };
    if let Some(path) = options.repositories.iter().find(|path| !path.is_dir()) {
        return Err(is_none(&path.display()));
    }
    for repository in &options.remote_repositories {
        if !repository.exists()? {
            return Err(is_none(&repository.address()));
        }
    }
    Ok(())
}

/// Loads the models named at the start; the inner result says whether all of them serve.
fn load_startup_models(repository: &Repository, names: &[String]) -> Result<Result<(), Error>, Error> {
    if names.iter().any(|name| name == "*") {
        return match names.len() {
            1 => Ok(repository.poll()),
            _ => Err(Error::invalid("Wildcard model name '*' must be the ONLY startup model if specified at all.")),
        };
    }
    let load = |name: &String| repository.load(name, &LoadParameters::default(), Asker::Client);
    let results: Vec<_> = names.iter().map(load).filter(Result::is_err).collect();
    let all = if results.is_empty() { Ok(()) } else { Err(Error::internal("failed to load all models")) };
    Ok(all)
}

fn wait_until(deadline: Instant, mut is_over: impl FnMut() -> bool) -> Result<(), Error> {
    let mut pause = Duration::from_millis(1);
    while !is_over() {
        if Instant::now() >= deadline {
            return Err(Error::internal(TIMED_OUT));
        }
        thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(50));
    }
    Ok(())
}

impl Poller {
    fn start(repository: Arc<Repository>, interval: Duration) -> Result<Self, Error> {
        let (stop, stopped) = mpsc::channel();
        let poll = move || {
            while stopped.recv_timeout(interval) == Err(RecvTimeoutError::Timeout) {
                // What went wrong is in the log; the models that are fine serve on.
                let _ = repository.poll();
            }
        };
        let thread = thread::Builder::new()
            .name("repository-poll".to_owned())
            .spawn(poll)
            .map_err(|error| Error::internal(format!("cannot start the thread that polls the repository: {error}")))?;
        Ok(Self { stop, thread })
    }

    fn stop(self) {
        drop(self.stop);
        // The thread has no panic of its own to report.
        let _ = self.thread.join();
    }
}
