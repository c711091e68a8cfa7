//! What `/ui/state` answers. Times are in nanoseconds unless their names say otherwise; counts are since a model was
//! loaded; what is not known is `null`.

use std::collections::BTreeMap;

use halimede_compute::{ComputeUnit, Precision};
use halimede_compute_cpu::MatrixUnits;
use halimede_platform::memory;
use halimede_serving::{
    Error, LoadedOverview, ModelOverview, Server, TensorMetadata,
    config::{ModelConfig, proto::model_config::SchedulingChoice},
    metrics::Value,
    statistics::{Duration, SlowRequest},
};
use serde::Serialize;

use crate::units;

/// Everything that the page shows.
#[derive(Debug, Serialize)]
pub(super) struct State<'s> {
    server: About,
    units: &'s [Unit],
    process: Process,
    machine: Machine,
    /// What the cache of responses counts, by the metrics' names; empty without one.
    cache: BTreeMap<String, f64>,
    models: Vec<Model>,
}

#[derive(Debug, Serialize)]
struct About {
    name: String,
    version: &'static str,
    protocol: &'static str,
    is_ready: bool,
    /// Whether models can be loaded and unloaded.
    is_explicit: bool,
    /// Most bytes of a request over HTTP.
    request_bytes_max: usize,
}

/// A compute unit.
#[derive(Debug, Serialize)]
pub(super) struct Unit {
    name: String,
    device: String,
    features: Vec<String>,
    threads: usize,
    precisions: Vec<String>,
}

/// Memory of the server, in bytes.
#[derive(Debug, Serialize)]
struct Process {
    private: Option<u64>,
    resident: Option<u64>,
}

/// Memory of the machine, in bytes.
#[derive(Debug, Serialize)]
struct Machine {
    total: Option<u64>,
    available: Option<u64>,
}

#[derive(Debug, Serialize)]
struct Model {
    name: String,
    namespace: String,
    version: Option<i64>,
    /// As in the repository's index; `null` for a model that was never loaded.
    state: Option<&'static str>,
    reason: String,
    loaded: Option<Loaded>,
}

#[derive(Debug, Serialize)]
struct Loaded {
    platform: String,
    batch_size_max: i32,
    instances: Vec<Instances>,
    is_decoupled: bool,
    /// Whether its requests belong to sequences.
    is_sequential: bool,
    inputs: Vec<Tensor>,
    outputs: Vec<Tensor>,
    load_seconds: f64,
    pending: i64,
    in_flight: usize,
    inferences: u64,
    executions: u64,
    last_inference_ms: u64,
    success: Events,
    failed: Events,
    failures: BTreeMap<&'static str, u64>,
    queue: Events,
    input: Events,
    infer: Events,
    output: Events,
    cache_hit: Events,
    cache_miss: Events,
    /// Executions by batch size.
    batches: Vec<(u64, u64)>,
    /// Upper bounds and requests below them, ascending.
    latencies: Vec<(u64, u64)>,
    slowest: Vec<Slow>,
    operators: Vec<Operator>,
    memory: Option<Memory>,
    tuning: Option<Tuning>,
}

#[derive(Debug, Serialize)]
struct Instances {
    count: i32,
    kind: &'static str,
}

#[derive(Debug, Serialize)]
struct Tensor {
    name: String,
    datatype: &'static str,
    shape: Vec<i64>,
    /// Whether requests may leave it out.
    is_optional: bool,
}

/// How many, and how long together.
#[derive(Debug, Serialize)]
struct Events {
    count: u64,
    ns: u64,
}

#[derive(Debug, Serialize)]
struct Slow {
    id: String,
    batch_size: usize,
    ended_ms: u64,
    total: u64,
    /// Where the time went, in the order in which it went; what is left of the total was spent between these.
    parts: [(&'static str, u64); 5],
}

/// Operators of a kind in the executions that were measured.
#[derive(Debug, Serialize)]
struct Operator {
    unit: &'static str,
    operator: String,
    factors: &'static str,
    ns: u64,
    /// Multiplications and additions.
    operations: f64,
    bytes: f64,
}

/// Bytes.
#[derive(Debug, Serialize)]
struct Memory {
    weights: usize,
    parts: Vec<(&'static str, usize, usize)>,
    instances: Vec<(usize, usize)>,
}

#[derive(Debug, Serialize)]
struct Tuning {
    is_active: bool,
    waiting: usize,
    tuned: usize,
    won: usize,
}

impl<'s> State<'s> {
    pub fn new(server: &Server, units: &'s [Unit], request_bytes_max: usize) -> Result<Self, Error> {
        let (about, own, machine) = (server.metadata(), memory::process(), memory::machine());
        let cache = server.cache_metrics().into_iter().filter_map(|family| {
            let value = family.samples.first().map(|sample| &sample.value)?;
            let Value::Number(number) = value else { return None };
            Some((family.name.into_owned(), *number))
        });
        Ok(Self {
            server: About {
                name: about.name,
                version: env!("CARGO_PKG_VERSION"),
                protocol: about.version,
                is_ready: server.is_ready(),
                is_explicit: server.is_explicit(),
                request_bytes_max,
            },
            units,
            process: Process { private: own.private, resident: own.resident },
            machine: Machine { total: machine.total, available: machine.available },
            cache: cache.collect(),
            models: server.overview()?.into_iter().map(Model::from).collect(),
        })
    }
}

/// The units of this machine.
pub(super) fn units(matrix: &MatrixUnits) -> Vec<Unit> {
    let choice = || units::Choice { matrix: matrix.clone(), ..units::Choice::default() };
    let found = units::NAMES.iter().filter_map(|name| units::find(name, choice()).ok());
    found.map(|unit| Unit::of(unit.as_ref())).collect()
}

impl Unit {
    fn of(unit: &dyn ComputeUnit) -> Self {
        let can = unit.describe();
        let precisions = can.precisions.iter().map(Precision::to_string).collect();
        Self {
            name: unit.name().to_owned(),
            device: can.device,
            features: can.features,
            threads: can.threads,
            precisions,
        }
    }
}

impl From<ModelOverview> for Model {
    fn from(model: ModelOverview) -> Self {
        let entry = model.entry;
        Self {
            name: entry.name,
            namespace: entry.namespace,
            version: entry.version,
            state: entry.state.map(|state| state.name()),
            reason: entry.reason,
            loaded: model.loaded.map(Loaded::from),
        }
    }
}

impl From<LoadedOverview> for Loaded {
    fn from(model: LoadedOverview) -> Self {
        let LoadedOverview { metadata, config, statistics, .. } = model;
        let all = &statistics.inference;
        let optional: Vec<&str> =
            config.input.iter().filter(|input| input.optional).map(|input| input.name.as_str()).collect();
        Self {
            platform: metadata.platform,
            batch_size_max: config.max_batch_size,
            instances: instances(&config),
            is_decoupled: config.model_transaction_policy.as_ref().is_some_and(|policy| policy.decoupled),
            is_sequential: matches!(config.scheduling_choice, Some(SchedulingChoice::SequenceBatching(_))),
            inputs: metadata.inputs.into_iter().map(|input| Tensor::new(input, &optional)).collect(),
            outputs: metadata.outputs.into_iter().map(|output| Tensor::new(output, &[])).collect(),
            load_seconds: model.load_seconds,
            pending: model.pending,
            in_flight: model.in_flight,
            inferences: statistics.inference_count,
            executions: statistics.execution_count,
            last_inference_ms: statistics.last_inference_ms,
            success: all.success.into(),
            failed: all.fail.into(),
            failures: model.failures.into_iter().collect(),
            queue: all.queue.into(),
            input: all.compute_input.into(),
            infer: all.compute_infer.into(),
            output: all.compute_output.into(),
            cache_hit: all.cache_hit.into(),
            cache_miss: all.cache_miss.into(),
            batches: statistics.batches.iter().map(|batch| (batch.batch_size, batch.compute_infer.count)).collect(),
            latencies: model.latencies,
            slowest: model.slowest.into_iter().map(Slow::from).collect(),
            operators: model
                .operators
                .into_iter()
                .map(|work| Operator {
                    unit: units::NAMES[0],
                    operator: work.operator,
                    factors: work.factors,
                    ns: ns(work.time),
                    operations: work.operations,
                    bytes: work.bytes,
                })
                .collect(),
            memory: model.memory.map(|memory| Memory {
                weights: memory.weights,
                parts: memory.parts.iter().map(|part| (part.name, part.private, part.mapped)).collect(),
                instances: memory.instances,
            }),
            tuning: model.tuning.map(|work| Tuning {
                is_active: work.is_active,
                waiting: work.waiting,
                tuned: work.tuned,
                won: work.won,
            }),
        }
    }
}

fn instances(config: &ModelConfig) -> Vec<Instances> {
    let groups = config.instance_group.iter();
    groups.map(|group| Instances { count: group.count, kind: group.kind().as_str_name() }).collect()
}

impl Tensor {
    fn new(tensor: TensorMetadata, optional: &[&str]) -> Self {
        let is_optional = optional.contains(&tensor.name.as_str());
        Self { name: tensor.name, datatype: tensor.datatype, shape: tensor.shape, is_optional }
    }
}

impl From<Duration> for Events {
    fn from(duration: Duration) -> Self {
        Self { count: duration.count, ns: duration.ns }
    }
}

impl From<SlowRequest> for Slow {
    fn from(request: SlowRequest) -> Self {
        let parts = [
            ("arrival", request.arrival),
            ("queue", request.queue),
            ("input", request.input),
            ("infer", request.infer),
            ("output", request.output),
        ];
        Self {
            id: request.id,
            batch_size: request.batch_size,
            ended_ms: request.ended_ms,
            total: ns(request.total),
            parts: parts.map(|(name, time)| (name, ns(time))),
        }
    }
}

fn ns(time: std::time::Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
