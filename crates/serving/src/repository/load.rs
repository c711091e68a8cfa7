//! Loads one version of a model.

use std::{
    collections::{BTreeMap, HashMap},
    panic::{AssertUnwindSafe, catch_unwind},
    path::Path,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::Instant,
};

use parking_lot::{Condvar, Mutex};

use super::{
    backends::Found,
    control::{Asker, ModelControl},
    files::{LocalFiles, ModelFiles},
    locate::check_inside,
    table::{Identifier, NamespaceMembers, Table},
};
use crate::{
    admission::Admission,
    backend::{Backend, LoadedModel, ModelContext, Peers},
    cache::ModelCache,
    config::{self, ModelConfig, ServerParts, ensemble::steps, proto::model_config::SchedulingChoice},
    ensemble::{Ensemble, Members},
    error::Error,
    instance::{Runner, RunnerSettings, WarmUp},
    metrics::CustomMetrics,
    model::{Execution, Model, SequenceSpec, Signature, read_labels, wants_cache},
    options::Options,
    rate_limiter::RateLimiter,
    scheduler::Scheduler,
    statistics::{Histogram, Recorder},
};

/// The setting of backends for models that can batch and do not say how far.
const DEFAULT_MAX_BATCH_SIZE: &str = "default-max-batch-size";

/// The backend of ONNX models.
pub(super) const ONNX_RUNTIME: &str = "onnxruntime";

/// What loading needs besides the model.
pub(super) struct Loader {
    pub options: Options,
    pub backends: BTreeMap<String, Arc<dyn Backend>>,
    pub table: Arc<Table>,
    /// The members of ensembles by namespace; ensembles hold them weakly.
    members: Mutex<HashMap<String, Arc<NamespaceMembers>>>,
    /// Loads that may still begin.
    permits: Mutex<usize>,
    permit_returned: Condvar,
    /// Who decides which instances of all models run.
    pub rate_limiter: Option<Arc<RateLimiter>>,
    /// Who gets memory, where it is limited.
    pub admission: Option<Admission>,
    /// Loads so far.
    generations: AtomicU64,
    /// Whether the log has the settings of [`ONNX_RUNTIME`].
    settings_told: AtomicBool,
    /// The metrics that models made for themselves.
    pub custom_metrics: CustomMetrics,
    /// What loads and unloads models for models.
    control: Weak<dyn ModelControl>,
}

impl Loader {
    pub fn new(options: Options, table: Arc<Table>, control: Weak<dyn ModelControl>) -> Self {
        let backends = options.backends.iter().map(|backend| (backend.name().to_owned(), backend.clone())).collect();
        let permits = Mutex::new(options.load_threads.max(1));
        let rate_limiter = options.rate_limit.clone().map(|available| Arc::new(RateLimiter::new(available)));
        let admission = options.memory.clone().map(|limit| Admission::new(limit, Instant::now()));
        if admission.as_ref().is_some_and(|admission| !admission.is_available()) {
            tracing::warn!("memory is not limited: the system does not say how much there is");
        }
        Self {
            options,
            backends,
            table,
            members: Mutex::default(),
            permits,
            permit_returned: Condvar::new(),
            rate_limiter,
            admission,
            generations: AtomicU64::new(0),
            settings_told: AtomicBool::new(false),
            custom_metrics: CustomMetrics::default(),
            control,
        }
    }

    /// A number for a load; each load has its own.
    pub fn next_generation(&self) -> u64 {
        self.generations.fetch_add(1, Relaxed)
    }

    /// Settings of configurations for the models of `backend`.
    pub fn config_options(&self, backend: &str) -> Result<config::Options, Error> {
        let mut options =
            config::Options { auto_complete: self.options.auto_complete_config, ..config::Options::default() };
        if let Some(text) = self.settings(backend).get(DEFAULT_MAX_BATCH_SIZE) {
            options.default_max_batch_size = text.parse().map_err(|_| {
                Error::invalid(format!("backend setting default-max-batch-size is no number: '{text}'"))
            })?;
        }
        Ok(options)
    }

    /// The settings of a backend: those for all backends, and its own over them.
    fn settings(&self, backend: &str) -> BTreeMap<String, String> {
        let mut settings = self.options.backend_settings.get("").cloned().unwrap_or_default();
        settings.extend(self.options.backend_settings.get(backend).cloned().unwrap_or_default());
        settings
    }

    /// Tells in the log what a backend is told of its settings, as Triton does: the first time a model of ONNX Runtime
    /// loads all of them, and for every model the batch size of those that do not say one.
    fn log_settings(&self, backend: &str, default_max_batch_size: i32) {
        let mut settings = self.settings(backend);
        let size = match settings.get(DEFAULT_MAX_BATCH_SIZE) {
            Some(size) => format!("Found overwritten default setting: {DEFAULT_MAX_BATCH_SIZE},{size}"),
            None => {
                format!("Adding default backend config setting: {DEFAULT_MAX_BATCH_SIZE},{default_max_batch_size}")
            }
        };
        tracing::debug!("{size}");
        if backend != ONNX_RUNTIME || self.settings_told.swap(true, Relaxed) {
            return;
        }
        let mut add = |name: &str, value: String| {
            settings.entry(name.to_owned()).or_insert(value);
        };
        add("auto-complete-config", self.options.auto_complete_config.to_string());
        add("backend-directory", self.options.backend_directory.to_string_lossy().into_owned());
        // Of GPUs, of which there are none.
        add("min-compute-capability", "0.000000".to_owned());
        add(DEFAULT_MAX_BATCH_SIZE, default_max_batch_size.to_string());
        let text = serde_json::json!({ "cmdline": settings });
        tracing::info!("backend configuration:\n{text}");
    }

    /// Loads a version, again if it fails and the options say so. At most so many loads run at once as
    /// the options allow, without those that models ask for: a load may wait for such a one.
    pub fn load(
        &self,
        id: &Identifier,
        files: &LocalFiles,
        config: &ModelConfig,
        version: i64,
        asker: Asker<'_>,
    ) -> Result<Arc<Model>, Error> {
        self.attempt(&format!("load '{id}' version {version}"), asker, || {
            let start = Instant::now();
            let load = || self.load_once(id, &files.directory, config, version);
            let model = catch_unwind(AssertUnwindSafe(load))
                .unwrap_or_else(|_| Err(Error::internal(format!("loading model '{id}' panicked"))))?;
            model.recorder.loaded_in(start.elapsed());
            Ok(Arc::new(model.with_files(files.owner.clone())))
        })
    }

    /// Brings the files of a model to this machine, where they are not yet; tried again and limited as loads are.
    pub fn fetch(&self, id: &Identifier, files: &ModelFiles, asker: Asker<'_>) -> Result<LocalFiles, Error> {
        match files {
            ModelFiles::Remote(_) => self.attempt(&format!("fetch '{id}'"), asker, || files.fetch()),
            ModelFiles::Directory(_) | ModelFiles::Sent(_) => files.fetch(),
        }
    }

    fn attempt<T>(&self, what: &str, asker: Asker<'_>, once: impl Fn() -> Result<T, Error>) -> Result<T, Error> {
        let _permit = (asker == Asker::Client).then(|| Permit::take(self));
        let mut attempts = (0..=self.options.load_retries).map(|_| once());
        let mut result = attempts.next().unwrap_or_else(|| Err(Error::internal("no attempt")));
        while let Err(error) = &result {
            tracing::error!("failed to {what}: {}: {}", error.code.name(), error.message);
            match attempts.next() {
                Some(next) => result = next,
                None => break,
            }
        }
        result
    }

    fn load_once(&self, id: &Identifier, directory: &Path, config: &ModelConfig, version: i64) -> Result<Model, Error> {
        let metrics = &self.options.metrics;
        let histogram = metrics.histogram_latencies.then(|| Histogram::of_first_responses(config));
        let recorder = Arc::new(Recorder::new(metrics).with_first_responses(histogram));
        if config.is_ensemble() {
            let config = config::finish_without_model(config.clone(), &self.config_options("")?)?;
            self.warn_of_ignored(&config);
            let signature = Arc::new(self.ensemble_signature(id, directory, &config)?);
            let ensemble = Ensemble::new(&config, signature.clone(), self.members(&id.namespace));
            let cache = self.model_cache(id, &config, &recorder, version, false);
            return Ok(Model::new(version, config, signature, recorder, Execution::Ensemble(ensemble), cache));
        }
        let mut config = config.clone();
        let Found { backend, name, directory: backend_directory } = self.backend_of(&mut config)?;
        check_inside(&config.default_model_filename, &id.name)?;
        let options = self.config_options(name)?;
        self.log_settings(name, options.default_max_batch_size);
        let context = ModelContext {
            // What is wrong with the groups is told before a backend looks for files.
            config: config::prepare_instance_groups(config, &options)?,
            options,
            directory: directory.to_path_buf(),
            version,
            backend_directory,
            settings: self.settings(name),
            peers: Peers { members: Some(self.members(&id.namespace)), control: Some(self.control.clone()) },
            metrics: self.custom_metrics.clone(),
            admission: self.admission.clone(),
        };
        let LoadedModel { completion, model } = backend.load(&context)?;
        let config = completion.config;
        for assumption in completion.assumptions {
            tracing::info!("{assumption}");
        }
        self.warn_of_ignored(&config);
        let mut signature = Signature::new(&config)?;
        read_all_labels(&mut signature, directory, &config)?;
        signature.sequence = SequenceSpec::read(&config, directory)?;
        let signature = Arc::new(signature);
        let preserve_ordering = matches!(
            &config.scheduling_choice,
            Some(SchedulingChoice::DynamicBatching(batching)) if batching.preserve_ordering
        );
        let settings = RunnerSettings {
            model,
            signature: signature.clone(),
            version,
            recorder: recorder.clone(),
            scheduler: Scheduler::from_config(&config),
            preserve_ordering,
            warm_up: WarmUp::read(&config, directory)?,
            rate_limiter: self.rate_limiter.clone(),
        };
        if let Some(SchedulingChoice::DynamicBatching(_)) = &config.scheduling_choice {
            tracing::debug!("Starting dynamic-batcher thread for {} at default nice...", id.name);
        }
        let runner = Runner::start(settings, &config.instance_group)?;
        let cache = self.model_cache(id, &config, &recorder, version, preserve_ordering);
        Ok(Model::new(version, config, signature, recorder, Execution::Runner(runner), cache))
    }

    /// Tells in the log what a configuration asks for that is not done.
    fn warn_of_ignored(&self, config: &ModelConfig) {
        let parts = ServerParts { rate_limiter: self.rate_limiter.is_some(), cache: self.options.cache.is_some() };
        for line in config::ignored(config, parts) {
            tracing::warn!("{line}");
        }
    }

    /// The cache in front of a version whose configuration asks for one.
    fn model_cache(
        &self,
        id: &Identifier,
        config: &ModelConfig,
        recorder: &Arc<Recorder>,
        version: i64,
        preserve_ordering: bool,
    ) -> Option<Arc<ModelCache>> {
        let cache = self.options.cache.as_ref().filter(|_| wants_cache(config))?.clone();
        let scope = if cache.is_shared() { id.namespace.clone() } else { self.next_generation().to_string() };
        Some(Arc::new(ModelCache::new(cache, recorder.clone(), version, scope, preserve_ordering)))
    }

    /// The signature with the labels of the ensemble, and of its members where it has none of its own.
    fn ensemble_signature(&self, id: &Identifier, directory: &Path, config: &ModelConfig) -> Result<Signature, Error> {
        let mut signature = Signature::new(config)?;
        read_all_labels(&mut signature, directory, config)?;
        for step in steps(config) {
            let version = (step.model_version > 0).then_some(step.model_version);
            let member = self.table.get_in(&id.namespace, &step.model_name, version)?;
            for (output, tensor) in &step.output_map {
                let labels = member.signature.output(output).map(|output| &output.labels);
                let mine = signature.outputs.iter_mut().find(|output| output.name == *tensor);
                if let (Some(mine), Some(labels)) = (mine.filter(|mine| mine.labels.is_empty()), labels) {
                    mine.labels.clone_from(labels);
                }
            }
        }
        Ok(signature)
    }

    fn members(&self, namespace: &str) -> Weak<dyn Members> {
        let mut members = self.members.lock();
        let of_namespace = members.entry(namespace.to_owned()).or_insert_with(|| {
            Arc::new(NamespaceMembers { table: self.table.clone(), namespace: namespace.to_owned() })
        });
        let strong: Arc<dyn Members> = of_namespace.clone();
        Arc::downgrade(&strong)
    }
}

fn read_all_labels(signature: &mut Signature, directory: &Path, config: &ModelConfig) -> Result<(), Error> {
    for (spec, output) in signature.outputs.iter_mut().zip(&config.output) {
        if !output.label_filename.is_empty() {
            spec.labels = read_labels(directory, &output.label_filename, &output.name, &config.name)?;
        }
    }
    Ok(())
}

/// The right to load; given back when it is dropped.
struct Permit<'a>(&'a Loader);

impl<'a> Permit<'a> {
    fn take(loader: &'a Loader) -> Self {
        let mut permits = loader.permits.lock();
        loader.permit_returned.wait_while(&mut permits, |permits| *permits == 0);
        *permits -= 1;
        Self(loader)
    }
}

impl Drop for Permit<'_> {
    fn drop(&mut self) {
        *self.0.permits.lock() += 1;
        self.0.permit_returned.notify_one();
    }
}
