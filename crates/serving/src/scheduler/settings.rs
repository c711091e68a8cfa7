//! From a configuration to a scheduler.

use std::time::Duration;

use super::{
    DynamicBatcher, Fifo, Item, Policy, Scheduler, SequenceBatcher, SequenceSettings, SequenceStrategy, Settings,
    TimeoutAction,
};
use crate::config::{
    ModelConfig,
    proto::{
        ModelDynamicBatching, ModelQueuePolicy, ModelSequenceBatching,
        model_config::SchedulingChoice,
        model_queue_policy,
        model_sequence_batching::{StrategyChoice, StrategyOldest},
    },
};

/// Holds the first batch of every dynamic batcher until so many requests wait. Tests of Triton set it.
const HOLD_VARIABLE: &str = "TRITONSERVER_DELAY_SCHEDULER";

/// The same for requests in the backlog of sequences.
const BACKLOG_HOLD_VARIABLE: &str = "TRITONSERVER_BACKLOG_DELAY_SCHEDULER";

impl<T: Item> Scheduler<T> {
    /// The scheduler that a complete configuration asks for.
    pub fn from_config(config: &ModelConfig) -> Self {
        match &config.scheduling_choice {
            Some(SchedulingChoice::DynamicBatching(batching)) => {
                Scheduler::Dynamic(DynamicBatcher::new(Settings::new(batching, batch_size_max(config))))
            }
            Some(SchedulingChoice::SequenceBatching(batching)) => {
                Scheduler::Sequence(Box::new(SequenceBatcher::new(SequenceSettings::new(batching, config))))
            }
            Some(SchedulingChoice::EnsembleScheduling(_)) | None => Scheduler::Fifo(Fifo::new()),
        }
    }
}

/// Rows of a batch.
fn batch_size_max(config: &ModelConfig) -> usize {
    usize::try_from(config.max_batch_size).unwrap_or(0).max(1)
}

/// The number in an environment variable; 0 without one.
fn number(variable: &str) -> usize {
    std::env::var(variable).ok().and_then(|text| text.parse().ok()).unwrap_or(0)
}

fn sizes(sizes: &[i32]) -> impl Iterator<Item = usize> {
    sizes.iter().filter_map(|size| usize::try_from(*size).ok())
}

impl SequenceSettings {
    fn new(batching: &ModelSequenceBatching, config: &ModelConfig) -> Self {
        let batch_size_max = batch_size_max(config);
        let (slots, strategy) = match &batching.strategy_choice {
            Some(StrategyChoice::Oldest(oldest)) => {
                let candidates = usize::try_from(oldest.max_candidate_sequences).unwrap_or(0);
                let slots = if candidates > 0 { candidates } else { batch_size_max };
                (slots, SequenceStrategy::Oldest(Settings::of_candidates(oldest, batch_size_max)))
            }
            choice => {
                let direct =
                    if let Some(StrategyChoice::Direct(direct)) = choice { *direct } else { Default::default() };
                let strategy = SequenceStrategy::Direct {
                    queue_delay_max: Duration::from_micros(direct.max_queue_delay_microseconds),
                    slot_utilization_min: direct.minimum_slot_utilization,
                    batch_size_max,
                };
                (batch_size_max, strategy)
            }
        };
        Self {
            model: config.name.clone(),
            slots,
            idle_max: Duration::from_micros(batching.max_sequence_idle_microseconds),
            is_iterative: batching.iterative_sequence,
            strategy,
            first_batch_hold: number(HOLD_VARIABLE),
            backlog_hold: number(BACKLOG_HOLD_VARIABLE),
        }
    }
}

impl Settings {
    /// How candidates of sequences are batched. One instance runs them in order, so that `preserve_ordering` needs
    /// nothing more.
    fn of_candidates(oldest: &StrategyOldest, batch_size_max: usize) -> Self {
        Self {
            batch_size_max,
            preferred_batch_sizes: sizes(&oldest.preferred_batch_size).collect(),
            queue_delay_max: Duration::from_micros(oldest.max_queue_delay_microseconds),
            first_batch_hold: number(HOLD_VARIABLE),
            ..Self::default()
        }
    }

    fn new(batching: &ModelDynamicBatching, batch_size_max: usize) -> Self {
        Self {
            batch_size_max,
            preferred_batch_sizes: sizes(&batching.preferred_batch_size).collect(),
            queue_delay_max: Duration::from_micros(batching.max_queue_delay_microseconds),
            priority_levels: batching.priority_levels,
            default_priority_level: batching.default_priority_level,
            default_policy: batching.default_queue_policy.as_ref().map(Policy::new).unwrap_or_default(),
            policies: batching
                .priority_queue_policy
                .iter()
                .map(|(level, policy)| (*level, Policy::new(policy)))
                .collect(),
            first_batch_hold: number(HOLD_VARIABLE),
        }
    }
}

impl Policy {
    fn new(policy: &ModelQueuePolicy) -> Self {
        Self {
            timeout_action: match policy.timeout_action() {
                model_queue_policy::TimeoutAction::Reject => TimeoutAction::Reject,
                model_queue_policy::TimeoutAction::Delay => TimeoutAction::Delay,
            },
            default_timeout: Duration::from_micros(policy.default_timeout_microseconds),
            allow_timeout_override: policy.allow_timeout_override,
            queue_len_max: policy.max_queue_size as usize,
        }
    }
}
