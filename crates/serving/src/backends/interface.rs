//! What NVIDIA's test backends with fixed inputs and outputs have in common.

use std::time::Duration;

use halimede_tensor::{Buffer, DType};

use crate::{
    backend::Batch,
    config::{DataType, ModelConfig},
    error::Error,
    model::shape_text,
    response::OutputTensor,
};

/// An input or an output that a backend wants: its name and its datatype without `TYPE_`.
pub(super) type Wanted = (&'static str, &'static str);

/// How long an execution takes: `execute_delay_ms` of the parameters.
pub(super) fn execute_delay(config: &ModelConfig) -> Result<Duration, Error> {
    number(config, "execute_delay_ms").map(Duration::from_millis)
}

/// Checks number, names and datatypes of the inputs and outputs of a configuration.
pub(super) fn check(config: &ModelConfig, inputs: &[Wanted], outputs: &[Wanted]) -> Result<(), Error> {
    let given_inputs: Vec<_> = config.input.iter().map(|io| (&*io.name, io.data_type())).collect();
    let given_outputs: Vec<_> = config.output.iter().map(|io| (&*io.name, io.data_type())).collect();
    check_count("input", inputs.len(), given_inputs.len())?;
    check_count("output", outputs.len(), given_outputs.len())?;
    check_names("input", inputs, &given_inputs)?;
    check_names("output", outputs, &given_outputs)?;
    check_datatypes(inputs, &given_inputs)?;
    check_datatypes(outputs, &given_outputs)
}

fn check_count(kind: &str, wanted: usize, given: usize) -> Result<(), Error> {
    if wanted == given {
        return Ok(());
    }
    let plural = if wanted == 1 { "" } else { "s" };
    Err(Error::invalid(format!("expected {wanted} {kind}{plural}, got {given}")))
}

fn check_names(kind: &str, wanted: &[Wanted], given: &[(&str, DataType)]) -> Result<(), Error> {
    for ((place, (name, _)), (found, _)) in ["first", "second", "third"].iter().zip(wanted).zip(given) {
        if name != found {
            return Err(Error::invalid(format!("expected {place} {kind} tensor name to be {name}, got {found}")));
        }
    }
    Ok(())
}

fn check_datatypes(wanted: &[Wanted], given: &[(&str, DataType)]) -> Result<(), Error> {
    for ((name, datatype), (_, found)) in wanted.iter().zip(given) {
        let found = found.as_str_name();
        if found.strip_prefix("TYPE_") != Some(datatype) {
            return Err(Error::invalid(format!("expected {name} datatype to be {datatype}, got {found}")));
        }
    }
    Ok(())
}

/// Checks that a tensor has one element without the batch.
pub(super) fn check_single(name: &str, dims: &[i64]) -> Result<(), Error> {
    if dims == [1] {
        return Ok(());
    }
    Err(Error::invalid(format!("expected {name} shape to be [1], got {}", shape_text(dims))))
}

/// The elements of an input of 32 bits each.
pub(super) fn words(batch: &Batch, index: usize, name: &str) -> Result<Vec<[u8; 4]>, Error> {
    let input = batch.gather_one(index, name)?;
    let input = input.ok_or_else(|| Error::invalid(format!("failed to get input '{name}'")))?;
    Ok(input.data.as_chunks().0.to_vec())
}

/// An output of one element of 32 bits.
pub(super) fn single(name: &str, dtype: DType, shape: Vec<i64>, value: [u8; 4]) -> OutputTensor {
    OutputTensor { name: name.to_owned(), dtype, shape, data: Buffer::foreign(value.to_vec()) }
}

/// An output of 32-bit integers that are all the same.
pub(super) fn filled(name: &str, shape: Vec<i64>, count: usize, value: i32) -> OutputTensor {
    let bytes = value.to_le_bytes().repeat(count);
    OutputTensor { name: name.to_owned(), dtype: DType::I32, shape, data: Buffer::foreign(bytes) }
}

/// A parameter of the configuration that is a number; 0 where it is not given.
pub(super) fn number(config: &ModelConfig, name: &str) -> Result<u64, Error> {
    let Some(parameter) = config.parameters.get(name) else { return Ok(0) };
    let text = &parameter.string_value;
    text.parse().map_err(|_| {
        Error::invalid(format!("parameter '{name}' of model '{}' must be a number, got '{text}'", config.name))
    })
}
