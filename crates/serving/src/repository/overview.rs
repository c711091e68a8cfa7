//! Models with everything that is known of them, for people who look at a running server.

use std::time::Instant;

use super::Repository;
use crate::{
    backend::{ModelMemory, OperatorWork, TuningWork},
    config::ModelConfig,
    error::Error,
    metadata::{IndexEntry, ModelMetadata},
    statistics::{FailureReason, ModelStatistics, SlowRequest},
};

/// A version of a model, or a model that was never loaded.
#[derive(Debug)]
pub struct ModelOverview {
    /// Name, version, state and why.
    pub entry: IndexEntry,
    /// More of one that is loaded.
    pub loaded: Option<LoadedOverview>,
}

/// A version of a model that is loaded.
#[derive(Debug)]
pub struct LoadedOverview {
    /// Its inputs and outputs.
    pub metadata: ModelMetadata,
    /// Its complete configuration.
    pub config: std::sync::Arc<ModelConfig>,
    /// What happened since it was loaded.
    pub statistics: ModelStatistics,
    /// Failed requests by reason, as the metrics name it.
    pub failures: Vec<(&'static str, u64)>,
    /// Upper bounds in nanoseconds, ascending, and how many requests took less, but no less than the bound before;
    /// bounds without any are left out. A bound is at most 12.5 % beyond what was observed.
    pub latencies: Vec<(u64, u64)>,
    /// The slowest requests of the last one to two minutes, the slowest first.
    pub slowest: Vec<SlowRequest>,
    /// Requests that wait to run.
    pub pending: i64,
    /// Requests that are not answered to the end.
    pub in_flight: usize,
    /// How long it took to load.
    pub load_seconds: f64,
    /// What its operators did in the executions that were measured; empty where that is not known.
    pub operators: Vec<OperatorWork>,
    /// Where its memory goes; `None` where that is not known.
    pub memory: Option<ModelMemory>,
    /// How far it is tuned; `None` where it is not.
    pub tuning: Option<TuningWork>,
}

impl Repository {
    /// All models of the repositories, in the order of the index.
    pub fn overview(&self, now: Instant) -> Result<Vec<ModelOverview>, Error> {
        let loaded = |entry: &IndexEntry| {
            let version = entry.version?;
            let id = super::table::Identifier { namespace: entry.namespace.clone(), name: entry.name.clone() };
            let model = self.table.versions(&id)?.remove(&version)?.model?;
            let recorder = &model.recorder;
            Some(LoadedOverview {
                metadata: model.metadata(vec![version]),
                config: model.config(),
                statistics: recorder.snapshot(&entry.name, version),
                failures: FailureReason::ALL
                    .map(|reason| (reason.name(), recorder.failure_count(reason)))
                    .into_iter()
                    .filter(|&(_, count)| count > 0)
                    .collect(),
                latencies: recorder.latencies(),
                slowest: recorder.slowest(now),
                pending: recorder.pending_count(),
                in_flight: model.in_flight(),
                load_seconds: recorder.load_seconds(),
                operators: model.operator_work(),
                memory: model.memory(),
                tuning: model.tuning_work(),
            })
        };
        let index = self.last_index()?;
        Ok(index.into_iter().map(|entry| ModelOverview { loaded: loaded(&entry), entry }).collect())
    }
}
