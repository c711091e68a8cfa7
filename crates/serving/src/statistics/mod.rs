//! What happened to the requests of a model.

mod snapshot;

pub use snapshot::{BatchStatistics, Duration, InferenceStatistics, MemoryUsage, ModelStatistics, ResponseStatistics};
