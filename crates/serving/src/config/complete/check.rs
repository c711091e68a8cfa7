//! A complete configuration against the model, as Triton's ONNX Runtime backend compares them when an
//! instance is made (`ValidateInputs`, `ValidateOutputs`).

use std::collections::BTreeMap;

use super::super::normalize::{data_type_name, full_shape, shape_text};
use super::super::proto::{
    DataType, ModelConfig, ModelInput, ModelOutput, ModelTensorReshape, model_config::SchedulingChoice,
};
use super::{IoFacts, ModelFacts, batch_io, sequences};
use crate::Error;

/// Checks names, datatypes and shapes of the configuration's inputs and outputs against the model's.
pub fn check_against_model(config: &ModelConfig, facts: &ModelFacts) -> Result<(), Error> {
    sequences::check(config, facts)?;
    let (expected, provided) = (expected_inputs(config), facts.inputs.len());
    if expected != provided {
        invalid!(
            "unable to load model '{}', configuration expects {expected} inputs, model provides {provided}",
            config.name
        );
    }
    let inputs = by_name(facts.inputs.iter().chain(&facts.initializers));
    let outputs = by_name(&facts.outputs);
    config.input.iter().try_for_each(|input| check_input(config, input, &inputs))?;
    config.output.iter().try_for_each(|output| check_output(config, output, &outputs))?;
    batch_io::check(config, facts)
}

type Facts<'a> = BTreeMap<&'a str, &'a IoFacts>;

fn by_name<'a>(facts: impl IntoIterator<Item = &'a IoFacts>) -> Facts<'a> {
    facts.into_iter().map(|io| (io.name.as_str(), io)).collect()
}

/// Inputs of the model that the configuration accounts for: its own, those computed from the batch, and
/// the controls and states of sequences.
fn expected_inputs(config: &ModelConfig) -> usize {
    let required = config.input.iter().filter(|input| !input.optional).count();
    let sequence = match &config.scheduling_choice {
        Some(SchedulingChoice::SequenceBatching(batching)) => {
            batching.control_input.iter().map(|input| input.control.len()).sum::<usize>() + batching.state.len()
        }
        _ => 0,
    };
    required + config.batch_input.len() + sequence
}

fn check_input(config: &ModelConfig, input: &ModelInput, facts: &Facts) -> Result<(), Error> {
    let (model, name) = (&config.name, &input.name);
    if input.optional && config.max_batch_size != 0 {
        invalid!(
            "unable to load model '{model}', optional input '{name}' is not supported for models that support batching"
        );
    }
    let io = find("input", name, facts)?;
    check_data_type(config, "input", name, input.data_type, io)?;
    if input.allow_ragged_batch {
        let expects = "configuration expects model provides input with shape [-1]";
        if input.optional {
            invalid!(
                "unable to load model '{model}', {expects} for ragged input '{name}', which is not supported for \
                 optional input"
            );
        }
        if io.shape != [-1] {
            let provided = shape_text(&io.shape);
            // Two blanks, as Triton has them.
            invalid!("unable to load model '{model}', {expects}  for ragged input '{name}', model provides {provided}");
        }
        return Ok(());
    }
    check_shape(config, name, served_dims(&input.dims, input.reshape.as_ref()), io, Compare::VariableFits)
}

fn check_output(config: &ModelConfig, output: &ModelOutput, facts: &Facts) -> Result<(), Error> {
    let name = &output.name;
    let io = find("output", name, facts)?;
    check_data_type(config, "output", name, output.data_type, io)?;
    // What is split over the requests of a batch need not have the model's shape.
    if config.batch_output.iter().any(|split| split.target_name.contains(name)) {
        return Ok(());
    }
    check_shape(config, name, served_dims(&output.dims, output.reshape.as_ref()), io, Compare::Exact)
}

fn served_dims<'a>(dims: &'a [i64], reshape: Option<&'a ModelTensorReshape>) -> &'a [i64] {
    reshape.map_or(dims, |reshape| &reshape.shape)
}

fn find<'a>(direction: &str, name: &str, facts: &Facts<'a>) -> Result<&'a IoFacts, Error> {
    match facts.get(name) {
        Some(io) => Ok(io),
        None => {
            let allowed: Vec<&str> = facts.keys().copied().collect();
            invalid!("unexpected inference {direction} '{name}', allowed {direction}s are: {}", allowed.join(", "))
        }
    }
}

fn check_data_type(
    config: &ModelConfig,
    direction: &str,
    name: &str,
    data_type: i32,
    io: &IoFacts,
) -> Result<(), Error> {
    let (model, configured) = (&config.name, data_type_name(data_type));
    match DataType::try_from(data_type) {
        Ok(known) if known == io.data_type && known != DataType::TypeInvalid => Ok(()),
        Ok(known) if known != DataType::TypeInvalid => {
            // Triton composes the second name from the one on the wire: TYPE_BYTES, not TYPE_STRING.
            let provided = io.data_type.wire_name();
            invalid!(
                "unable to load model '{model}', configuration expects datatype {configured} for {direction} '{name}', \
                 model provides TYPE_{provided}"
            )
        }
        _ => Err(Error::internal(format!(
            "unsupported datatype {configured} for {direction} '{name}' for model '{model}'"
        ))),
    }
}

/// Whether a variable dimension of the model takes any configured one.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Compare {
    VariableFits,
    Exact,
}

fn check_shape(config: &ModelConfig, name: &str, dims: &[i64], io: &IoFacts, compare: Compare) -> Result<(), Error> {
    let model = &config.name;
    if io.shape.is_empty() {
        // A scalar of the model is served as one element in any number of dimensions.
        if dims.iter().any(|dim| *dim != 1) {
            invalid!(
                "unable to load model '{model}', scalar tensor '{name}', should only provide 1 in the model \
                 configuration when the model doesn't support batching. Model configuration provided: {}.",
                shape_text(dims)
            );
        }
        return Ok(());
    }

    let place = format!("model '{model}', tensor '{name}'");
    let is_batching = config.max_batch_size > 0;
    if is_batching && io.shape[0] != -1 {
        invalid!(
            "{place}: for the model to support batching the shape should have at least 1 dimension and the first \
             dimension must be -1; but shape expected by the model is {}",
            shape_text(&io.shape)
        );
    }
    let full = full_shape(config.max_batch_size, dims);
    let fits = |(axis, configured): (usize, &i64)| {
        let expected = io.shape[axis];
        let is_variable = expected == -1;
        // ONNX Runtime tells Triton what it worked out of a dimension that is declared as variable.
        let is_inferred = || is_variable && io.inferred.get(axis) == Some(configured);
        expected == *configured || is_inferred() || compare == Compare::VariableFits && is_variable
    };
    if io.shape.len() == full.len() && full.iter().enumerate().all(fits) {
        return Ok(());
    }
    let expects = format!("the model expects {} dimensions (shape {})", io.shape.len(), shape_text(&io.shape));
    let (count, shape) = (full.len(), shape_text(&full));
    if is_batching {
        invalid!(
            "{place}: {expects} but the model configuration specifies {count} dimensions (an initial batch dimension \
             because max_batch_size > 0 followed by the explicit tensor shape, making complete shape {shape})"
        );
    }
    invalid!("{place}: {expects} but the model configuration specifies {count} dimensions (shape {shape})")
}
