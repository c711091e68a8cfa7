//! From a configuration to a scheduler.

use std::time::Duration;

use super::{DynamicBatcher, Fifo, Item, Policy, Scheduler, Settings, TimeoutAction};
use crate::config::{
    ModelConfig,
    proto::{ModelDynamicBatching, ModelQueuePolicy, model_config::SchedulingChoice, model_queue_policy},
};

/// Holds the first batch of every dynamic batcher until so many requests wait. Tests of Triton set it.
const HOLD_VARIABLE: &str = "TRITONSERVER_DELAY_SCHEDULER";

impl<T: Item> Scheduler<T> {
    /// The scheduler that a complete configuration asks for.
    pub fn from_config(config: &ModelConfig) -> Self {
        match &config.scheduling_choice {
            Some(SchedulingChoice::DynamicBatching(batching)) => {
                let hold = std::env::var(HOLD_VARIABLE).ok().and_then(|text| text.parse().ok()).unwrap_or(0);
                Scheduler::Dynamic(DynamicBatcher::new(Settings::new(batching, config.max_batch_size, hold)))
            }
            _ => Scheduler::Fifo(Fifo::new()),
        }
    }
}

impl Settings {
    fn new(batching: &ModelDynamicBatching, batch_size_max: i32, first_batch_hold: usize) -> Self {
        let sizes = batching.preferred_batch_size.iter();
        Self {
            batch_size_max: usize::try_from(batch_size_max).unwrap_or(0).max(1),
            preferred_batch_sizes: sizes.filter_map(|size| usize::try_from(*size).ok()).collect(),
            queue_delay_max: Duration::from_micros(batching.max_queue_delay_microseconds),
            priority_levels: batching.priority_levels,
            default_priority_level: batching.default_priority_level,
            default_policy: batching.default_queue_policy.as_ref().map(Policy::new).unwrap_or_default(),
            policies: batching
                .priority_queue_policy
                .iter()
                .map(|(level, policy)| (*level, Policy::new(policy)))
                .collect(),
            first_batch_hold,
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
