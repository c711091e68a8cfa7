//! The flags of `tritonserver`, which `halimede serve` takes too.
//!
//! [`table::FLAGS`] is the one list: name, value, meaning and effect of each. What a flag asks for and this
//! server does not do yet is either harmless ([`Flags::warnings`]) or refused ([`Flags::refused`]).

mod backend_settings;
mod effects;
mod parse;
mod table;
#[cfg(test)]
mod tests;
mod values;

use std::{collections::BTreeMap, path::PathBuf, time::Duration};

use halimede_compute::Precision;
use halimede_serving::{ControlMode, Error, MetricsOptions, config::Tune, rate_limiter::Available};

pub(crate) use parse::{FlagError, parse, usage};

use crate::{
    grpc::PingLimits,
    memory::Limit,
    restricted::Restrictions,
    source::Source,
    tls::TlsFlags,
    traces::{CollectorFlags, Levels, Values},
};

/// What the flags say. The defaults are Triton's but for [`Flags::address`].
#[derive(Debug, Clone)]
pub(crate) struct Flags {
    pub id: String,
    pub exit_timeout: Duration,
    pub exit_on_error: bool,
    pub strict_readiness: bool,
    pub auto_complete_config: bool,
    pub repositories: Vec<PathBuf>,
    /// Addresses of repositories in object storage.
    pub cloud_repositories: Vec<String>,
    pub control: Control,
    pub poll_interval: Duration,
    pub startup_models: Vec<String>,
    pub model_config_name: String,
    pub load_threads: usize,
    pub load_retries: u32,
    pub model_namespacing: bool,
    pub backend_settings: BTreeMap<String, BTreeMap<String, String>>,
    pub backend_directory: PathBuf,
    pub has_rate_limit: bool,
    pub rate_limit_resources: Available,
    pub http: HttpFlags,
    pub grpc: GrpcFlags,
    pub metrics: MetricsFlags,
    pub log: LogFlags,
    pub trace: TraceFlags,
    /// Settings of caches of responses by the caches' names.
    pub caches: BTreeMap<String, BTreeMap<String, String>>,
    /// The size of the local cache as an old flag gives it.
    pub cache_bytes: Option<i64>,
    pub client_shared_memory: bool,
    /// Of models whose configuration says nothing of it.
    pub precision: Option<Precision>,
    /// Whether the matrix unit may be used.
    pub matrix: bool,
    /// Where the fastest configurations of kernels are kept.
    pub tuning_database: Source,
    /// How much memory may be taken; `None`: as usual under the name of the program.
    pub memory_limit: Option<Limit>,
    /// Whether models are tuned while they serve whose configuration says nothing of it.
    pub tune: Tune,
    /// How long the operators of a model are measured at most.
    pub tune_time: Duration,
    /// Where packed weights are kept.
    pub packed_weights: Source,
    /// All of them together take no more.
    pub packed_weights_bytes_max: u64,
    pub pinned_pool_bytes: u64,
    /// Where services listen whose address no flag gives.
    pub address: &'static str,
    /// What is accepted without effect.
    pub warnings: Vec<String>,
    /// What must not be ignored and is not there.
    pub refused: Vec<String>,
}

/// Who decides which models are loaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Control {
    None,
    Poll,
    Explicit,
}

/// The number of a port. A wrong one is wrong only where the port is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Port {
    Number(u16),
    OutOfRange(i32),
}

impl Port {
    /// The number, if it is one.
    pub fn number(self) -> Result<u16, Error> {
        match self {
            Port::Number(port) => Ok(port),
            Port::OutOfRange(port) => {
                Err(Error::invalid(format!("{port} is no port: ports go from 0 to {}", u16::MAX)))
            }
        }
    }
}

#[derive(Debug, Clone)]
pub(crate) struct HttpFlags {
    pub allow: bool,
    /// Whether there is a page at `/ui`.
    pub allow_ui: bool,
    pub address: Option<String>,
    pub port: Port,
    pub reuse_port: bool,
    pub threads: usize,
    pub forward_headers: Option<regex::Regex>,
    pub restrictions: Restrictions,
    pub tls: TlsFlags,
    /// Most bytes of JSON, of a raw tensor, and of what was decompressed.
    pub input_bytes_max: usize,
    /// Most bytes of a body, binary tensors included.
    pub body_bytes_max: usize,
}

#[derive(Debug, Clone)]
pub(crate) struct GrpcFlags {
    pub allow: bool,
    pub address: Option<String>,
    pub port: Port,
    pub reuse_port: bool,
    pub forward_headers: Option<regex::Regex>,
    pub restrictions: Restrictions,
    pub tls: TlsFlags,
    /// Whether responses are compressed for clients that accept it.
    pub compress: bool,
    pub keepalive_time: Duration,
    pub keepalive_timeout: Duration,
    /// How often clients may probe.
    pub ping_limits: PingLimits,
    pub connection_age_max: Option<Duration>,
    pub connection_age_grace: Option<Duration>,
}

#[derive(Debug, Clone)]
pub(crate) struct MetricsFlags {
    pub allow: bool,
    pub allow_cpu: bool,
    pub address: Option<String>,
    pub port: Port,
    pub interval: Duration,
    pub options: MetricsOptions,
}

#[derive(Debug, Clone)]
pub(crate) struct LogFlags {
    pub verbose: i32,
    pub info: bool,
    pub warning: bool,
    pub error: bool,
    pub iso8601: bool,
    pub file: String,
}

#[derive(Debug, Clone)]
pub(crate) struct TraceFlags {
    pub level: Levels,
    /// Whether a level OFF was given, which wins over all others.
    pub is_off: bool,
    pub rate: u32,
    pub count: i32,
    pub log_frequency: u32,
    pub file: String,
    /// Whether traces are sent to a collector rather than written to files.
    pub is_sent: bool,
    pub collector: CollectorFlags,
}

impl Default for TraceFlags {
    fn default() -> Self {
        Self {
            level: Levels::default(),
            is_off: false,
            rate: 1000,
            count: -1,
            log_frequency: 0,
            file: String::new(),
            is_sent: false,
            collector: CollectorFlags::default(),
        }
    }
}

impl TraceFlags {
    /// What clients find when the server has started.
    pub fn values(&self) -> Values {
        Values {
            level: if self.is_off { Levels::default() } else { self.level },
            rate: self.rate,
            count: self.count,
            log_frequency: self.log_frequency,
            file: self.file.clone(),
            collector: None,
        }
    }
}

impl Flags {
    /// The defaults of a server that listens at `address`.
    pub fn new(address: &'static str) -> Self {
        Self {
            id: "triton".to_owned(),
            exit_timeout: Duration::from_secs(30),
            exit_on_error: true,
            strict_readiness: true,
            auto_complete_config: true,
            repositories: Vec::new(),
            cloud_repositories: Vec::new(),
            control: Control::None,
            poll_interval: Duration::from_secs(15),
            startup_models: Vec::new(),
            model_config_name: String::new(),
            load_threads: 4,
            load_retries: 0,
            model_namespacing: false,
            backend_settings: BTreeMap::new(),
            backend_directory: halimede_serving::Options::default().backend_directory,
            has_rate_limit: false,
            rate_limit_resources: Available::default(),
            http: HttpFlags {
                allow: true,
                allow_ui: true,
                address: None,
                port: Port::Number(8000),
                reuse_port: false,
                threads: 8,
                forward_headers: None,
                restrictions: Restrictions::default(),
                tls: TlsFlags::default(),
                input_bytes_max: 64 << 20,
                body_bytes_max: i32::MAX as usize,
            },
            grpc: GrpcFlags {
                allow: true,
                address: None,
                port: Port::Number(8001),
                reuse_port: false,
                forward_headers: None,
                restrictions: Restrictions::default(),
                tls: TlsFlags::default(),
                compress: false,
                keepalive_time: Duration::from_secs(7200),
                keepalive_timeout: Duration::from_secs(20),
                ping_limits: PingLimits {
                    interval_min: Duration::from_secs(300),
                    strikes_max: 2,
                    permit_without_calls: false,
                },
                connection_age_max: None,
                connection_age_grace: None,
            },
            metrics: MetricsFlags {
                allow: true,
                allow_cpu: true,
                address: None,
                port: Port::Number(8002),
                interval: Duration::from_secs(2),
                options: MetricsOptions::default(),
            },
            log: LogFlags { verbose: 0, info: true, warning: true, error: true, iso8601: false, file: String::new() },
            trace: TraceFlags::default(),
            caches: BTreeMap::new(),
            cache_bytes: None,
            client_shared_memory: true,
            precision: None,
            tuning_database: Source::default(),
            memory_limit: None,
            tune: Tune::default(),
            tune_time: Duration::from_secs(60),
            packed_weights: Source::default(),
            packed_weights_bytes_max: 8 << 30,
            matrix: true,
            pinned_pool_bytes: 256 << 20,
            address,
            warnings: Vec::new(),
            refused: Vec::new(),
        }
    }

    pub fn http_address(&self) -> &str {
        self.http.address.as_deref().unwrap_or(self.address)
    }

    pub fn grpc_address(&self) -> &str {
        self.grpc.address.as_deref().unwrap_or(self.address)
    }

    /// The metrics service listens where HTTP does unless told otherwise.
    pub fn metrics_address(&self) -> &str {
        let http = self.http_address();
        // What is no address does no harm as long as HTTP is off.
        let inherited = if !self.http.allow && http.starts_with('-') { self.address } else { http };
        self.metrics.address.as_deref().unwrap_or(inherited)
    }

    /// What the server is started with. The backends are those that are built in.
    pub fn server_options(&self) -> halimede_serving::Options {
        halimede_serving::Options {
            id: self.id.clone(),
            repositories: self.repositories.clone(),
            control: match self.control {
                Control::None => ControlMode::None,
                Control::Poll => ControlMode::Poll(self.poll_interval),
                Control::Explicit => ControlMode::Explicit,
            },
            startup_models: self.startup_models.clone(),
            exit_on_error: self.exit_on_error,
            exit_timeout: self.exit_timeout,
            strict_readiness: self.strict_readiness,
            auto_complete_config: self.auto_complete_config,
            model_config_name: self.model_config_name.clone(),
            load_threads: self.load_threads,
            load_retries: self.load_retries,
            model_namespacing: self.model_namespacing,
            backend_settings: self.backend_settings.clone(),
            backend_directory: self.backend_directory.clone(),
            metrics: self.metrics.options.clone(),
            rate_limit: self.has_rate_limit.then(|| self.rate_limit_resources.clone()),
            ..halimede_serving::Options::default()
        }
    }
}
