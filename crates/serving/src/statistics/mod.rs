//! What happened to the requests of a model.

mod recorder;
mod snapshot;
mod summary;

pub(crate) use recorder::{ComputeDurations, ComputeTimes, FailureReason, Outcome, Recorder};
pub use snapshot::{BatchStatistics, Duration, InferenceStatistics, MemoryUsage, ModelStatistics, ResponseStatistics};
pub(crate) use summary::{SUMMARIES, SummaryValues};
