//! Inputs that are computed from the batch and outputs that are split by an input, against the model.
//!
//! Triton loads what is refused here, and fails or reads beyond the output when a request comes.

use super::super::normalize::shape_text;
use super::super::proto::{BatchInput, BatchOutput, ModelConfig, batch_input::Kind::BatchItemShape};
use super::ModelFacts;
use crate::Error;

/// Checks that the model has an input for each target, and that outputs have dimensions to be split by.
pub(super) fn check(config: &ModelConfig, facts: &ModelFacts) -> Result<(), Error> {
    config.batch_input.iter().try_for_each(|input| check_batch_input(config, input, facts))?;
    config.batch_output.iter().try_for_each(|output| check_batch_output(config, output))
}

fn check_batch_input(config: &ModelConfig, input: &BatchInput, facts: &ModelFacts) -> Result<(), Error> {
    let (model, kind) = (&config.name, input.kind().as_str_name());
    if input.target_name.is_empty() {
        invalid!("unable to load model '{model}', batch input '{kind}' must specify 'target_name'");
    }
    for name in &input.target_name {
        let filled = config.batch_input.iter().flat_map(|other| &other.target_name);
        let given = config.input.iter().map(|input| &input.name);
        if filled.chain(given).filter(|other| *other == name).count() > 1 {
            invalid!("unable to load model '{model}', batch input '{name}' can only be specified once");
        }
        let Some(io) = facts.inputs.iter().find(|io| io.name == *name) else {
            let known: Vec<&str> = facts.inputs.iter().map(|io| io.name.as_str()).collect();
            invalid!(
                "unable to load model '{model}', configuration specified batch input '{name}', but model does not \
                 provide that input, its inputs are: {}",
                known.join(", ")
            );
        };
        if io.data_type != input.data_type() {
            invalid!(
                "unable to load model '{model}', configuration expects datatype {} for batch input '{name}', model \
                 provides TYPE_{}",
                input.data_type().as_str_name(),
                io.data_type.wire_name()
            );
        }
        let rank = if input.kind() == BatchItemShape { 2 } else { 1 };
        // Nothing is known of an input without a shape.
        if !io.shape.is_empty() && io.shape.len() != rank {
            let expected = shape_text(&vec![-1; rank]);
            invalid!(
                "unable to load model '{model}', batch input '{name}' has shape {expected} for '{kind}', model provides \
                 {}",
                shape_text(&io.shape)
            );
        }
    }
    Ok(())
}

fn check_batch_output(config: &ModelConfig, split: &BatchOutput) -> Result<(), Error> {
    let model = &config.name;
    if split.target_name.is_empty() {
        invalid!(
            "unable to load model '{model}', batch output '{}' must specify 'target_name'",
            split.kind().as_str_name()
        );
    }
    let source = config.input.iter().find(|input| split.source_input.contains(&input.name));
    let source =
        source.map(|input| (&input.name, input.reshape.as_ref().map_or(&input.dims, |reshape| &reshape.shape)));
    let Some((source, source_dims)) = source else { return Ok(()) };
    for output in config.output.iter().filter(|output| split.target_name.contains(&output.name)) {
        let dims = output.reshape.as_ref().map_or(&output.dims, |reshape| &reshape.shape);
        if dims.iter().rposition(|dim| *dim == -1).is_some_and(|axis| axis >= source_dims.len()) {
            invalid!(
                "unable to load model '{model}', batch output '{}' of dims {} has a variable dimension that its source \
                 input '{source}' of dims {} does not have",
                output.name,
                shape_text(dims),
                shape_text(source_dims)
            );
        }
    }
    Ok(())
}
