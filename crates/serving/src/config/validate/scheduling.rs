//! Checks of the dynamic batcher's and the sequence batcher's settings.

use std::collections::HashSet;

use super::super::proto::{
    DataType, ModelConfig, ModelDynamicBatching, ModelQueuePolicy, ModelSequenceBatching,
    model_config::SchedulingChoice,
    model_queue_policy::TimeoutAction,
    model_sequence_batching::{Control, StrategyChoice, control::Kind},
};
use crate::Error;

pub(super) fn validate(config: &ModelConfig) -> Result<(), Error> {
    match &config.scheduling_choice {
        Some(SchedulingChoice::DynamicBatching(batching)) => validate_dynamic(config, batching),
        Some(SchedulingChoice::SequenceBatching(batching)) => validate_sequence(config, batching),
        Some(SchedulingChoice::EnsembleScheduling(_)) | None => Ok(()),
    }
}

pub(super) fn response_cache_enabled(config: &ModelConfig) -> bool {
    config.response_cache.as_ref().is_some_and(|cache| cache.enable)
}

fn validate_dynamic(config: &ModelConfig, batching: &ModelDynamicBatching) -> Result<(), Error> {
    let name = &config.name;
    for &size in &batching.preferred_batch_size {
        if size <= 0 {
            invalid!("dynamic batching preferred size must be positive for {name}");
        }
        if size > config.max_batch_size {
            invalid!("dynamic batching preferred size must be <= max batch size for {name}");
        }
    }

    let levels = batching.priority_levels;
    if levels != 0 {
        if !(1..=levels).contains(&batching.default_priority_level) {
            invalid!("default priority level must be in range [1, {levels}] for {name}");
        }
        if batching.priority_queue_policy.keys().any(|level| !(1..=levels).contains(level)) {
            invalid!("priority queue policy must have priority level in range [1, {levels}] for {name}");
        }
    }

    if batching.preserve_ordering {
        if levels > 1 {
            invalid!("Only one priority level is allowed when 'preserve_ordering' is true for {name}");
        }
        let delays = |policy: &ModelQueuePolicy| {
            policy.default_timeout_microseconds != 0 && policy.timeout_action() == TimeoutAction::Delay
        };
        if batching.default_queue_policy.iter().chain(batching.priority_queue_policy.values()).any(delays) {
            invalid!("Queue policy can not have DELAY as timeout action when 'preserve_ordering' is true for {name}");
        }
    }
    Ok(())
}

fn validate_sequence(config: &ModelConfig, batching: &ModelSequenceBatching) -> Result<(), Error> {
    let name = &config.name;
    if response_cache_enabled(config) {
        invalid!(
            "Response Cache does not currently support model {name} with sequence batching scheduler. Please \
             disable the response cache."
        );
    }
    for kind in [Kind::ControlSequenceStart, Kind::ControlSequenceEnd, Kind::ControlSequenceReady] {
        if let Some(control) = find_control(batching, name, kind)? {
            validate_boolean_control(control, name)?;
        }
    }
    if let Some(control) = find_control(batching, name, Kind::ControlSequenceCorrid)? {
        validate_correlation_control(control, name)?;
    }

    match &batching.strategy_choice {
        Some(StrategyChoice::Oldest(oldest)) => {
            for &size in &oldest.preferred_batch_size {
                if size <= 0 {
                    invalid!("sequence batching preferred batch size must be positive for {name}");
                }
                if size > config.max_batch_size {
                    invalid!("sequence batching preferred batch size must be <= max batch size for {name}");
                }
            }
        }
        // Triton's text excludes 0.0 and its check does not; NaN is no share of anything.
        Some(StrategyChoice::Direct(direct)) if !(0.0..=1.0).contains(&direct.minimum_slot_utilization) => {
            invalid!("sequence batching minimum slot utilization must be in range (0.0, 1.0] for {name}");
        }
        Some(StrategyChoice::Direct(_)) | None => {}
    }
    Ok(())
}

/// The one control of `kind`, if there is one. Control tensors have a name, each its own.
fn find_control<'a>(
    batching: &'a ModelSequenceBatching,
    model: &str,
    kind: Kind,
) -> Result<Option<&'a Control>, Error> {
    let mut tensors = HashSet::new();
    let mut found = None;
    for input in &batching.control_input {
        if input.name.is_empty() {
            invalid!("sequence batching control tensor must have a name for {model}");
        }
        if !tensors.insert(&input.name) {
            let tensor = &input.name;
            invalid!("sequence batching control tensor '{tensor}' is specified for multiple control kinds for {model}");
        }
        for control in input.control.iter().filter(|control| control.kind == kind as i32) {
            if found.replace(control).is_some() {
                invalid!("sequence batching specifies multiple {} tensors for {model}", kind.as_str_name());
            }
        }
    }
    Ok(found)
}

/// The two values of a boolean control are given in exactly one of three types.
fn validate_boolean_control(control: &Control, model: &str) -> Result<(), Error> {
    let kind = control.kind().as_str_name();
    let given = [
        ("int32_false_true", control.int32_false_true.len()),
        ("fp32_false_true", control.fp32_false_true.len()),
        ("bool_false_true", control.bool_false_true.len()),
    ];
    let mut given = given.into_iter().filter(|(_, count)| *count > 0);
    match (given.next(), given.next()) {
        (None, _) => invalid!(
            "sequence batching must specify either 'int32_false_true', 'fp32_false_true' or 'bool_false_true' for \
             {kind} for {model}"
        ),
        (Some(_), Some(_)) => invalid!(
            "sequence batching specifies more than one from 'int32_false_true', 'fp32_false_true' and \
             'bool_false_true' for {kind} for {model}"
        ),
        (Some((field, count)), None) if count != 2 => {
            invalid!("sequence batching control '{field}' must have exactly 2 entries for {kind} for {model}")
        }
        (Some(_), None) => Ok(()),
    }
}

fn validate_correlation_control(control: &Control, model: &str) -> Result<(), Error> {
    let kind = control.kind().as_str_name();
    if !(control.int32_false_true.is_empty()
        && control.fp32_false_true.is_empty()
        && control.bool_false_true.is_empty())
    {
        invalid!(
            "sequence batching must not specify either 'int32_false_true', 'fp32_false_true' or 'bool_false_true' \
             for {kind} for {model}"
        );
    }
    match control.data_type() {
        DataType::TypeUint64
        | DataType::TypeInt64
        | DataType::TypeUint32
        | DataType::TypeInt32
        | DataType::TypeString => Ok(()),
        _ => invalid!(
            "unexpected data type for control {kind} for {model}. Allowed data types are TYPE_UINT64, TYPE_INT64, \
             TYPE_UINT32, TYPE_INT32 and TYPE_STRING"
        ),
    }
}
