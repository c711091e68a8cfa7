//! What a server is started with.

use std::{collections::BTreeMap, fmt, path::PathBuf, sync::Arc, time::Duration};

use halimede_tensor::Buffer;

use crate::{
    admission::MemoryLimit, backend::Backend, cache::ResponseCache, rate_limiter::Available, remote::RemoteRepository,
};

/// What a server is started with. The defaults are Triton's.
#[derive(Clone)]
pub struct Options {
    /// Name of the server in its metadata.
    pub id: String,
    /// Directories with one sub-directory per model. A model found in two of them is served from neither.
    pub repositories: Vec<PathBuf>,
    /// Repositories that are not directories of this machine.
    pub remote_repositories: Vec<Arc<dyn RemoteRepository>>,
    /// Who decides which models are loaded.
    pub control: ControlMode,
    /// Models to load at the start in explicit mode; `*` alone means all.
    pub startup_models: Vec<String>,
    /// Whether [`Server::start`](crate::Server::start) fails when a model does.
    pub exit_on_error: bool,
    /// How long models may take to end that were loaded when it turns out that the server does not start.
    pub exit_timeout: Duration,
    /// Whether the server counts as ready only while every model is.
    pub strict_readiness: bool,
    /// Whether missing parts of a configuration are read from the model.
    pub auto_complete_config: bool,
    /// Use `configs/NAME.pbtxt` of a model where it exists, instead of `config.pbtxt`. Empty: never.
    pub model_config_name: String,
    /// Models that may load at once.
    pub load_threads: usize,
    /// How often a failed load is tried again.
    pub load_retries: u32,
    /// Whether models in different repositories may have the same name.
    pub model_namespacing: bool,
    /// Where backends lie that are not built in: a folder with a `model.py` for each.
    pub backend_directory: PathBuf,
    /// Settings of backends: backend name (empty: all backends) to key to value.
    pub backend_settings: BTreeMap<String, BTreeMap<String, String>>,
    /// Which metrics are collected.
    pub metrics: MetricsOptions,
    /// Where responses of models are kept whose configurations ask for it; `None`: nowhere.
    pub cache: Option<Arc<dyn ResponseCache>>,
    /// What instances share, where a rate limiter decides which of them run; `None`: each runs when it has requests.
    pub rate_limit: Option<Available>,
    /// How much memory models and requests may take; `None`: as much as they do.
    pub memory: Option<MemoryLimit>,
    /// The backends; by default those that are built in.
    pub backends: Vec<Arc<dyn Backend>>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            id: "triton".to_owned(),
            repositories: Vec::new(),
            remote_repositories: Vec::new(),
            control: ControlMode::None,
            startup_models: Vec::new(),
            exit_on_error: true,
            exit_timeout: Duration::from_secs(30),
            strict_readiness: true,
            auto_complete_config: true,
            model_config_name: String::new(),
            load_threads: 4,
            load_retries: 0,
            model_namespacing: false,
            backend_directory: PathBuf::from("/opt/tritonserver/backends"),
            backend_settings: BTreeMap::new(),
            metrics: MetricsOptions::default(),
            cache: None,
            rate_limit: None,
            memory: None,
            backends: crate::backends::built_in(),
        }
    }
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options")
            .field("id", &self.id)
            .field("repositories", &self.repositories)
            .field("remote_repositories", &self.remote_repositories)
            .field("control", &self.control)
            .finish_non_exhaustive()
    }
}

/// Who decides which models are loaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ControlMode {
    /// All models, at the start.
    None,
    /// All models; the repositories are looked at again each time this long has passed.
    Poll(Duration),
    /// Clients, by load and unload requests.
    Explicit,
}

/// Which metrics are collected besides the counters of requests.
#[derive(Debug, Clone, PartialEq)]
pub struct MetricsOptions {
    /// Whether durations are counted.
    pub counter_latencies: bool,
    /// Whether durations are collected in histograms.
    pub histogram_latencies: bool,
    /// Whether quantiles of durations are estimated.
    pub summary_latencies: bool,
    /// The quantiles of summaries and the error allowed in each, both between 0 and 1.
    pub summary_quantiles: Vec<(f64, f64)>,
}

impl Default for MetricsOptions {
    fn default() -> Self {
        Self {
            counter_latencies: true,
            histogram_latencies: false,
            summary_latencies: false,
            summary_quantiles: vec![(0.5, 0.05), (0.9, 0.01), (0.95, 0.001), (0.99, 0.001), (0.999, 0.001)],
        }
    }
}

/// What a client may give with a request to load a model.
#[derive(Debug, Clone, Default)]
pub struct LoadParameters {
    /// A configuration in JSON, in place of the one in the repository.
    pub config: Option<String>,
    /// Files by path below the model's directory, such as `1/model.onnx`, in place of the directory in the
    /// repository. Only with `config`.
    pub files: Vec<(String, Buffer)>,
}
