//! Statistics at one moment, as the statistics extension reports them.

use std::collections::BTreeMap;

/// A number of events and the time they took together.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Duration {
    /// Number of events.
    pub count: u64,
    /// Their durations together, in nanoseconds.
    pub ns: u64,
}

/// Statistics of one version of a model since it was loaded.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ModelStatistics {
    /// Name of the model.
    pub name: String,
    /// Version of the model.
    pub version: i64,
    /// When the last request arrived, in milliseconds since 1970; 0: never.
    pub last_inference_ms: u64,
    /// Inferences, each element of a batch counted.
    pub inference_count: u64,
    /// Executions of the model, each batch counted once.
    pub execution_count: u64,
    /// Requests and the time they spent where.
    pub inference: InferenceStatistics,
    /// The same by response, for models that answer a request with several: the response's index to its
    /// statistics.
    pub responses: BTreeMap<String, ResponseStatistics>,
    /// Executions by batch size, ascending.
    pub batches: Vec<BatchStatistics>,
    /// Memory in use.
    pub memory: Vec<MemoryUsage>,
}

/// Requests and the time they spent where.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct InferenceStatistics {
    /// Successful requests, from arrival to response.
    pub success: Duration,
    /// Failed requests, from arrival to response.
    pub fail: Duration,
    /// Time in the queue.
    pub queue: Duration,
    /// Gathering of inputs.
    pub compute_input: Duration,
    /// The execution itself.
    pub compute_infer: Duration,
    /// Scattering of outputs.
    pub compute_output: Duration,
    /// Responses found in the cache.
    pub cache_hit: Duration,
    /// Responses sought in the cache and not found.
    pub cache_miss: Duration,
}

/// Executions with one batch size.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct BatchStatistics {
    /// Number of inferences in the batch.
    pub batch_size: u64,
    /// Gathering of inputs.
    pub compute_input: Duration,
    /// The execution itself.
    pub compute_infer: Duration,
    /// Scattering of outputs.
    pub compute_output: Duration,
}

/// The n-th responses of a decoupled model.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ResponseStatistics {
    /// The execution itself.
    pub compute_infer: Duration,
    /// Scattering of outputs.
    pub compute_output: Duration,
    /// Successful responses.
    pub success: Duration,
    /// Failed responses.
    pub fail: Duration,
    /// Responses without outputs.
    pub empty_response: Duration,
    /// Responses to requests that were cancelled.
    pub cancel: Duration,
}

/// Memory of one kind that a model uses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemoryUsage {
    /// Kind of memory, such as `CPU`.
    pub kind: String,
    /// Which device.
    pub id: i64,
    /// Bytes.
    pub byte_size: u64,
}
