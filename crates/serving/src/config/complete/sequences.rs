//! The signals and states of sequences against the model.

use super::super::normalize::shape_text;
use super::super::proto::{
    DataType, ModelConfig,
    model_config::SchedulingChoice,
    model_sequence_batching::{Control, control::Kind},
};
use super::{IoFacts, ModelFacts};
use crate::Error;

/// Checks that the model has an input of the right type for each signal, and the tensors of each state.
pub(super) fn check(config: &ModelConfig, facts: &ModelFacts) -> Result<(), Error> {
    let Some(SchedulingChoice::SequenceBatching(batching)) = &config.scheduling_choice else { return Ok(()) };
    let controls =
        || batching.control_input.iter().flat_map(|input| input.control.iter().map(|one| (&input.name, one)));
    // In Triton's order.
    for kind in
        [Kind::ControlSequenceStart, Kind::ControlSequenceEnd, Kind::ControlSequenceReady, Kind::ControlSequenceCorrid]
    {
        for (name, control) in controls().filter(|(_, control)| control.kind() == kind) {
            check_signal(config, name, control, facts)?;
        }
    }
    for state in &batching.state {
        for (name, found, kind) in
            [(&state.input_name, &facts.inputs, "input"), (&state.output_name, &facts.outputs, "output")]
        {
            let has = |io: &&IoFacts| io.name == *name;
            let Some(io) = found.iter().find(has) else {
                invalid!(
                    "unable to load model '{}', configuration specified state '{name}', but model does not provide that \
                     {kind}",
                    config.name
                );
            };
            if io.data_type != state.data_type() {
                invalid!(
                    "unable to load model '{}', configuration expects datatype {} for state '{name}', model provides \
                     TYPE_{}",
                    config.name,
                    state.data_type().as_str_name(),
                    io.data_type.wire_name()
                );
            }
        }
    }
    Ok(())
}

fn check_signal(config: &ModelConfig, name: &str, control: &Control, facts: &ModelFacts) -> Result<(), Error> {
    let model = &config.name;
    let Some(io) = facts.inputs.iter().find(|io| io.name == name) else {
        return Err(Error::internal(format!(
            "configuration specified sequence control '{name}', but model does not provide that input"
        )));
    };
    let dims = io.shape.get(usize::from(config.max_batch_size > 0)..).unwrap_or_default();
    if dims != [1] {
        invalid!(
            "unable to load model '{model}', sequence control '{name}' in model has dims {} but dims [1] is expected",
            shape_text(dims)
        );
    }
    let configured = data_type(control);
    if io.data_type != configured {
        invalid!(
            "unable to load model '{model}', sequence control '{name}', the model expects data-type {} but the model \
             configuration specifies data-type {}",
            onnx_name(io.data_type),
            configured.as_str_name()
        );
    }
    Ok(())
}

fn data_type(control: &Control) -> DataType {
    match control.kind() {
        Kind::ControlSequenceCorrid => control.data_type(),
        _ if !control.int32_false_true.is_empty() => DataType::TypeInt32,
        _ if !control.fp32_false_true.is_empty() => DataType::TypeFp32,
        _ => DataType::TypeBool,
    }
}

/// What Triton's ONNX Runtime backend calls a datatype.
fn onnx_name(data_type: DataType) -> &'static str {
    match data_type {
        DataType::TypeFp16 => "FLOAT16",
        DataType::TypeFp32 => "FLOAT",
        DataType::TypeFp64 => "DOUBLE",
        DataType::TypeBf16 => "BFLOAT16",
        DataType::TypeString => "STRING",
        DataType::TypeInvalid => "UNDEFINED",
        other => other.wire_name(),
    }
}
