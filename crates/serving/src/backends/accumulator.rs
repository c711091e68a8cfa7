//! What NVIDIA's test backends that add up the requests of sequences have in common.

use crate::{
    backend::Batch,
    config::{DataType, ModelConfig, proto::model_config::SchedulingChoice},
    error::Error,
};

/// Answers each request of a batch, and those with an error for which that fails. What fills the rows of sequences without
/// a request is left out.
pub(super) fn answer_each(batch: &mut Batch, mut answer: impl FnMut(&mut Batch, usize) -> Result<(), Error>) {
    for index in 0..batch.len() {
        if batch.is_stand_in(index) {
            continue;
        }
        if let Err(error) = answer(batch, index) {
            batch.fail(index, error);
        }
    }
}

/// Checks that the controls are those of `names`.
pub(super) fn check_controls(config: &ModelConfig, names: &[&str], text: &str) -> Result<(), Error> {
    let controls = match &config.scheduling_choice {
        Some(SchedulingChoice::SequenceBatching(batching)) => &batching.control_input[..],
        _ => &[],
    };
    let is_there = |name: &&str| controls.iter().any(|control| control.name == **name);
    if controls.len() == names.len() && names.iter().all(is_there) {
        return Ok(());
    }
    Err(Error::invalid(text))
}

/// Checks that there is one input and one output of 32-bit integers in one dimension.
pub(super) fn check_vectors(config: &ModelConfig) -> Result<(), Error> {
    let require = |is_so: bool, text: &str| if is_so { Ok(()) } else { Err(Error::invalid(text)) };
    let [input] = &config.input[..] else {
        return Err(Error::invalid("model must have input 'INPUT' with vector shape, any length"));
    };
    require(input.dims.len() == 1, "model must have one input 'INPUT' with vector shape, any length")?;
    require(input.data_type() == DataType::TypeInt32, "model input must have TYPE_INT32 data-type")?;
    require(input.name == "INPUT", "model input must be named 'INPUT'")?;
    let [output] = &config.output[..] else {
        return Err(Error::invalid("model must have one output 'OUTPUT' with vector shape, any length"));
    };
    require(output.dims == input.dims, "model must have output 'OUTPUT' with shape matching 'INPUT'")?;
    require(output.data_type() == DataType::TypeInt32, "model output must have TYPE_INT32 data-type")?;
    require(output.name == "OUTPUT", "model output must be named 'OUTPUT'")
}

/// Whether a signal is not zero.
pub(super) fn is_set(batch: &Batch, index: usize, name: &str) -> Result<bool, Error> {
    let input = batch.gather_one(index, name)?;
    let input = input.ok_or_else(|| Error::invalid(format!("failed to get input '{name}'")))?;
    Ok(input.data.iter().any(|byte| *byte != 0))
}

/// The elements and the shape of an input.
pub(super) fn numbers(batch: &Batch, index: usize, name: &str) -> Result<(Vec<i32>, Vec<i64>), Error> {
    let input = batch.gather_one(index, name)?;
    let input = input.ok_or_else(|| Error::invalid(format!("failed to get input '{name}'")))?;
    if batch.is_batched() && input.shape.first() != Some(&1) {
        return Err(Error::unsupported("unable to execute more than one timestep at a time"));
    }
    let values = input.data.as_chunks().0.iter().map(|bytes| i32::from_le_bytes(*bytes)).collect();
    Ok((values, input.shape))
}

/// A sum with what was added before.
pub(super) fn sum(before: i32, values: &[i32]) -> i32 {
    values.iter().fold(before, |sum, value| sum.wrapping_add(*value))
}
