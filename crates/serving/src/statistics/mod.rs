//! What happened to the requests of a model.

mod histogram;
mod latency;
mod recorder;
mod slowest;
mod snapshot;
mod summary;
mod total;

pub(crate) use histogram::{FIRST_RESPONSE, Histogram, time_first_response};
pub(crate) use recorder::{ComputeDurations, ComputeTimes, FailureReason, Outcome, Recorder};
pub use slowest::SlowRequest;
pub(crate) use slowest::Success;
pub use snapshot::{BatchStatistics, Duration, InferenceStatistics, MemoryUsage, ModelStatistics, ResponseStatistics};
pub(crate) use summary::{SUMMARIES, SummaryValues};
pub(crate) use total::ComputeTotal;
