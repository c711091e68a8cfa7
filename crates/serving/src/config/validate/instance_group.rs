//! Checks of the instance groups (`ValidateInstanceGroup`).

use super::super::Gpus;
use super::super::proto::{
    ModelConfig, ModelInstanceGroup, model_config::SchedulingChoice, model_instance_group::Kind,
    model_sequence_batching::StrategyChoice,
};
use super::TENSORRT_PLAN;
use crate::Error;

/// Instances of a model, at most. Each has a thread of its own, and a process that runs out of memory mappings
/// for threads is ended by the system: some ten thousand are too many.
const INSTANCES_MAX: u64 = 1024;

/// Places for sequences of a model, at most. All are there from the start.
const SEQUENCES_MAX: u64 = 1 << 20;

/// Checks the groups against the GPUs the server has. They must be normalized.
pub fn validate_instance_groups(config: &ModelConfig, gpus: &Gpus) -> Result<(), Error> {
    if config.is_ensemble() {
        return Ok(());
    }
    if config.instance_group.is_empty() {
        invalid!("must specify one or more 'instance group's for {}", config.name);
    }
    config.instance_group.iter().try_for_each(|group| validate_group(config, group, gpus))?;
    let count = |group: &ModelInstanceGroup| u64::try_from(group.count).unwrap_or(0) * group.gpus.len().max(1) as u64;
    let instances: u64 = config.instance_group.iter().map(count).sum();
    if instances > INSTANCES_MAX {
        invalid!(
            "the instance groups of model {} come to {instances} instances, each with a thread of its own; at most \
             {INSTANCES_MAX} are supported: lower 'count'",
            config.name
        );
    }
    validate_places(config, instances)
}

/// Checks how many sequences so many instances have places for.
fn validate_places(config: &ModelConfig, instances: u64) -> Result<(), Error> {
    let Some(SchedulingChoice::SequenceBatching(batching)) = &config.scheduling_choice else { return Ok(()) };
    let (field, places) = match &batching.strategy_choice {
        Some(StrategyChoice::Oldest(oldest)) if oldest.max_candidate_sequences > 0 => {
            ("max_candidate_sequences", oldest.max_candidate_sequences)
        }
        _ => ("max_batch_size", config.max_batch_size),
    };
    let places = u64::try_from(places).unwrap_or(0);
    if places.saturating_mul(instances) > SEQUENCES_MAX {
        invalid!(
            "sequence batching of model {} has places for {places} sequences ('{field}') in each of {instances} instances; at \
             most {SEQUENCES_MAX} in all are supported: lower '{field}' or the 'count' of instances",
            config.name
        );
    }
    Ok(())
}

fn validate_group(config: &ModelConfig, group: &ModelInstanceGroup, gpus: &Gpus) -> Result<(), Error> {
    let place = format!("instance group {} of model {}", group.name, config.name);
    match Kind::try_from(group.kind) {
        Ok(Kind::Model) if !group.gpus.is_empty() => {
            invalid!("{place} has kind KIND_MODEL but specifies one or more GPUs")
        }
        Ok(Kind::Cpu) if !group.gpus.is_empty() => {
            invalid!("{place} has kind KIND_CPU but specifies one or more GPUs")
        }
        Ok(Kind::Model | Kind::Cpu) => {}
        Ok(Kind::Gpu) => validate_gpus(group, gpus, &place)?,
        Ok(Kind::Auto) => return Err(Error::internal(format!("{place} has unexpected kind KIND_AUTO"))),
        Err(_) => return Err(Error::internal(format!("{place} has unexpected kind {}", group.kind))),
    }
    if group.profile.is_empty() {
        return Ok(());
    }
    if config.platform != TENSORRT_PLAN {
        // Triton forgets the blank before "specifies".
        invalid!(
            "{place} and platform {}specifies profile field which is only supported for TensorRT models",
            config.platform
        );
    }
    match group.profile.iter().find(|profile| profile.parse::<u32>().is_err()) {
        None => Ok(()),
        Some(profile) => invalid!(
            "{place} and platform {} specifies invalid profile {profile}. The field should contain the string \
             representation of a non-negative integer.",
            config.platform
        ),
    }
}

fn validate_gpus(group: &ModelInstanceGroup, gpus: &Gpus, place: &str) -> Result<(), Error> {
    let Gpus::Ids(available) = gpus else {
        invalid!("{place} has kind KIND_GPU but server does not support GPUs");
    };
    if group.gpus.is_empty() {
        let lacking = if available.is_empty() { "no GPUs are available" } else { "specifies no GPUs" };
        invalid!("{place} has kind KIND_GPU but {lacking}");
    }
    match group.gpus.iter().find(|id| !available.contains(id)) {
        None => Ok(()),
        Some(id) => {
            let available: Vec<String> = available.iter().map(i32::to_string).collect();
            invalid!(
                "{place} specifies invalid or unsupported gpu id {id}. The available GPUs are: {}",
                available.join(", ")
            )
        }
    }
}
