//! Inputs, outputs and batching from the model itself, as Triton's ONNX Runtime backend completes them
//! (`AutoCompleteConfig`), except that a model whose rows are known to depend on each other is never
//! batched.

use std::{collections::HashSet, fmt};

use super::super::normalize;
use super::super::proto::{
    ModelConfig, ModelDynamicBatching, ModelInput, ModelOutput, ModelTensorReshape, model_config::SchedulingChoice,
};
use super::{Batching, IoFacts, IoKind, ModelFacts};
use crate::Error;

/// The maximum batch size of a model that can batch and whose configuration does not say how far,
/// unless `--backend-config` says otherwise.
pub const DEFAULT_MAX_BATCH_SIZE: i32 = 4;

/// Something that the completion could not know, what it took instead, and how to say otherwise.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Assumption {
    /// What was taken and why.
    pub assumed: String,
    /// What to write into the configuration to decide otherwise.
    pub to_override: String,
}

impl fmt::Display for Assumption {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}. {}", self.assumed, self.to_override)
    }
}

/// A completed configuration and what was assumed on the way.
#[derive(Debug, Clone)]
pub struct Completion {
    /// The configuration, normalized again.
    pub config: ModelConfig,
    /// Empty where nothing was assumed. Each belongs in the log.
    pub assumptions: Vec<Assumption>,
}

/// Completes `config` from the model. A configuration that has inputs and outputs stays as it is.
///
/// # Errors
/// The configuration wants batches of a model that cannot batch, or the model has an input or output
/// that is no tensor.
pub fn complete_from_model(
    mut config: ModelConfig,
    facts: &ModelFacts,
    default_max_batch_size: i32,
) -> Result<Completion, Error> {
    let mut assumptions = Vec::new();
    let has_inputs = !config.input.is_empty() || !config.batch_input.is_empty();
    let has_outputs = !config.output.is_empty();
    if has_inputs && has_outputs {
        return Ok(Completion { config, assumptions });
    }
    check_tensors(facts)?;
    complete_batching(&mut config, facts, default_max_batch_size, &mut assumptions)?;
    let is_batching = config.max_batch_size > 0;
    let hidden = of_sequences(&config);
    let is_visible = |io: &&IoFacts| !hidden.contains(&io.name);
    if !has_inputs {
        config.input = facts.inputs.iter().filter(is_visible).map(|io| input(io, is_batching)).collect();
    }
    if !has_outputs {
        config.output = facts.outputs.iter().filter(is_visible).map(|io| output(io, is_batching)).collect();
    }
    normalize(&mut config);
    Ok(Completion { config, assumptions })
}

/// The inputs and outputs that sequences have between their requests, and that clients do not see.
fn of_sequences(config: &ModelConfig) -> HashSet<String> {
    let Some(SchedulingChoice::SequenceBatching(batching)) = &config.scheduling_choice else { return HashSet::new() };
    let states = batching.state.iter().flat_map(|state| [&state.input_name, &state.output_name]);
    batching.control_input.iter().map(|input| &input.name).chain(states).cloned().collect()
}

fn check_tensors(facts: &ModelFacts) -> Result<(), Error> {
    match facts.inputs.iter().chain(&facts.outputs).find(|io| io.kind != IoKind::Tensor) {
        None => Ok(()),
        Some(io) => Err(Error::unsupported(format!(
            "Unsupported ONNX Type '{}' for I/O '{}', expected '{}'.",
            io.kind.onnx_name(),
            io.name,
            IoKind::Tensor.onnx_name()
        ))),
    }
}

/// Decides whether the model batches, and how far.
fn complete_batching(
    config: &mut ModelConfig,
    facts: &ModelFacts,
    default_max_batch_size: i32,
    assumptions: &mut Vec<Assumption>,
) -> Result<(), Error> {
    let name = &config.name;
    let mut all = facts.inputs.iter().chain(&facts.outputs);
    let can_batch = all.all(|io| io.shape.first() == Some(&-1)) && !facts.inputs.is_empty();
    if !can_batch {
        if config.max_batch_size != 0 {
            invalid!(
                "autofill failed for model '{name}': model does not support batching while non-zero max_batch_size is \
                 specified"
            );
        }
        return Ok(());
    }

    if config.max_batch_size == 0 {
        if names_full_shapes(config, facts) {
            return Ok(());
        }
        let size = default_max_batch_size.max(0);
        match &facts.batching {
            Batching::Mixed(place) => {
                assumptions.push(Assumption {
                    assumed: format!(
                        "model '{name}' is not batched although the first dimension of all its inputs and outputs is \
                         variable, because its rows depend on each other: {place}"
                    ),
                    to_override: format!(
                        "To batch it all the same, write 'max_batch_size: {size}' into its config.pbtxt, together \
                         with its inputs and outputs"
                    ),
                });
                return Ok(());
            }
            Batching::Unknown if size > 0 => assumptions.push(Assumption {
                assumed: format!(
                    "model '{name}' is taken to support batching (max_batch_size {size}): the first dimension of all \
                     its inputs and outputs is variable"
                ),
                to_override: "To decide otherwise, write 'max_batch_size: N', or inputs and outputs with all their \
                              dimensions, into its config.pbtxt"
                    .to_owned(),
            }),
            Batching::Unknown | Batching::Independent => {}
        }
        config.max_batch_size = size;
    }
    if config.max_batch_size > 1 && config.scheduling_choice.is_none() {
        config.scheduling_choice = Some(SchedulingChoice::DynamicBatching(ModelDynamicBatching::default()));
    }
    Ok(())
}

/// Whether the configuration already names an input or output with all dimensions of the model: then
/// its author counts the first dimension among them, and it is no batch.
fn names_full_shapes(config: &ModelConfig, facts: &ModelFacts) -> bool {
    let inputs = config.input.iter().map(|io| (&io.name, &io.dims, &io.reshape));
    let outputs = config.output.iter().map(|io| (&io.name, &io.dims, &io.reshape));
    inputs.chain(outputs).any(|(name, dims, reshape)| {
        let rank = reshape.as_ref().map_or(dims.len(), |reshape| reshape.shape.len());
        facts.inputs.iter().chain(&facts.outputs).any(|io| io.name == *name && io.shape.len() == rank)
    })
}

fn input(io: &IoFacts, is_batching: bool) -> ModelInput {
    let (dims, reshape) = dims(io, is_batching);
    ModelInput { name: io.name.clone(), data_type: io.data_type as i32, dims, reshape, ..Default::default() }
}

fn output(io: &IoFacts, is_batching: bool) -> ModelOutput {
    let (dims, reshape) = dims(io, is_batching);
    ModelOutput { name: io.name.clone(), data_type: io.data_type as i32, dims, reshape, ..Default::default() }
}

/// The dimensions without the batch. The configuration has no scalars: one element per row is written
/// as [1] and reshaped to nothing; a scalar of a model that does not batch is [1] alone.
fn dims(io: &IoFacts, is_batching: bool) -> (Vec<i64>, Option<ModelTensorReshape>) {
    let dims = io.shape.get(usize::from(is_batching)..).unwrap_or_default();
    if !dims.is_empty() {
        return (dims.to_vec(), None);
    }
    (vec![1], is_batching.then(ModelTensorReshape::default))
}
