//! An ensemble against its members (`ValidateEnsembleConfig`) and against the other models of the
//! server.

use std::collections::{BTreeMap, BTreeSet};

use super::super::normalize::{data_type_name, full_shape, shape_text};
use super::super::proto::{ModelConfig, model_ensembling::Step};
use super::{run_order, steps};
use crate::Error;

/// Checks that the members agree with the ensemble and with each other about the tensors between them:
/// names, datatypes, shapes, batch sizes, and that no step joins responses of different decoupled
/// members. `member` gives the completed configuration of a model that the ensemble uses.
///
/// Returns whether the ensemble is decoupled, which Triton writes into its configuration as
/// `model_transaction_policy`.
pub fn validate_members<'a>(
    ensemble: &'a ModelConfig,
    member: impl Fn(&str) -> Option<&'a ModelConfig>,
) -> Result<bool, Error> {
    let mut tensors = Tensors { ensemble: &ensemble.name, nodes: BTreeMap::new() };
    for input in &ensemble.input {
        let dims = input.reshape.as_ref().map_or(&input.dims, |reshape| &reshape.shape);
        tensors.declare(&input.name, Node::new(ensemble, input.data_type, dims));
    }
    for output in &ensemble.output {
        let dims = output.reshape.as_ref().map_or(&output.dims, |reshape| &reshape.shape);
        tensors.declare(&output.name, Node::new(ensemble, output.data_type, dims));
    }

    for step in steps(ensemble) {
        let Some(config) = member(&step.model_name) else {
            return Err(unavailable(&ensemble.name, &[&step.model_name]));
        };
        // A model that does not batch may be part of an ensemble that does, if the full shapes agree.
        if config.max_batch_size != 0 && config.max_batch_size < ensemble.max_batch_size {
            invalid!(
                "ensemble {} allows maximum batch size {}, but it contains model {} which only allows maximum batch \
                 size to be {}",
                ensemble.name,
                ensemble.max_batch_size,
                step.model_name,
                config.max_batch_size
            );
        }
        tensors.map_inputs(step, config)?;
        tensors.map_outputs(step, config)?;
    }
    validate_decoupled_flow(ensemble, |model| member(model).is_some_and(ModelConfig::is_decoupled))
}

/// A tensor of the ensemble and the model that says so first.
struct Node<'a> {
    model: &'a str,
    data_type: i32,
    dims: &'a [i64],
    /// With the batch dimension, where the model batches.
    full: Vec<i64>,
}

impl<'a> Node<'a> {
    fn new(model: &'a ModelConfig, data_type: i32, dims: &'a [i64]) -> Self {
        Self { model: &model.name, data_type, dims, full: full_shape(model.max_batch_size, dims) }
    }
}

struct Tensors<'a> {
    ensemble: &'a str,
    nodes: BTreeMap<&'a str, Node<'a>>,
}

impl<'a> Tensors<'a> {
    fn declare(&mut self, tensor: &'a str, node: Node<'a>) {
        self.nodes.entry(tensor).or_insert(node);
    }

    /// Compares what `node` says about `tensor` with what was said before.
    fn agree(&mut self, tensor: &'a str, node: Node<'a>) -> Result<(), Error> {
        let Some(known) = self.nodes.get(tensor) else {
            self.nodes.insert(tensor, node);
            return Ok(());
        };
        let place = format!("in ensemble {}, ensemble tensor {tensor}: ", self.ensemble);
        if known.data_type != node.data_type {
            invalid!(
                "{place}inconsistent data type: {} is inferred from model {} while {} is inferred from model {}",
                data_type_name(known.data_type),
                known.model,
                data_type_name(node.data_type),
                node.model
            );
        }
        // A tensor may go from a model that batches to one whose own first dimension is the batch.
        if !shapes_agree(known.dims, node.dims) && !shapes_agree(&known.full, &node.full) {
            invalid!(
                "{place}inconsistent shape: {} is inferred from model {} while {} is inferred from model {}",
                shape_text(&known.full),
                known.model,
                shape_text(&node.full),
                node.model
            );
        }
        Ok(())
    }

    fn map_inputs(&mut self, step: &'a Step, config: &'a ModelConfig) -> Result<(), Error> {
        let (ensemble, model) = (self.ensemble, &step.model_name);
        let names: BTreeSet<&str> = config.input.iter().map(|input| input.name.as_str()).collect();
        for (input, tensor) in &step.input_map {
            if !names.contains(input.as_str()) {
                invalid!(
                    "in ensemble {ensemble}, ensemble tensor {tensor} is mapping to non-existing input {input} in \
                     model {model}"
                );
            }
        }
        for input in &config.input {
            match step.input_map.get(&input.name) {
                Some(tensor) => self.agree(tensor, Node::new(config, input.data_type, &input.dims))?,
                None if input.optional => {}
                None => invalid!(
                    "in ensemble {ensemble}, input {} in model {model} is not mapped to any ensemble tensors",
                    input.name
                ),
            }
        }
        Ok(())
    }

    fn map_outputs(&mut self, step: &'a Step, config: &'a ModelConfig) -> Result<(), Error> {
        for (name, tensor) in &step.output_map {
            let Some(output) = config.output.iter().find(|output| output.name == *name) else {
                invalid!(
                    "in ensemble {}, ensemble tensor {tensor} is mapped from non-existing output {name} in model {}",
                    self.ensemble,
                    step.model_name
                );
            };
            self.agree(tensor, Node::new(config, output.data_type, &output.dims))?;
        }
        Ok(())
    }
}

/// Follows the responses through the ensemble. Every decoupled step starts a stream of its own; a step
/// (and the answer to the client) may only take tensors of one stream. True if there is any stream.
fn validate_decoupled_flow(ensemble: &ModelConfig, is_decoupled: impl Fn(&str) -> bool) -> Result<bool, Error> {
    const REQUEST: usize = 0;
    let mut last_stream = REQUEST;
    let mut streams: BTreeMap<&str, usize> =
        ensemble.input.iter().map(|input| (input.name.as_str(), REQUEST)).collect();
    for step in run_order(ensemble) {
        let mut stream = common_stream(ensemble, &step.model_name, &streams, step.input_map.values())?;
        if is_decoupled(&step.model_name) {
            last_stream += 1;
            stream = last_stream;
        }
        for tensor in step.output_map.values() {
            streams.entry(tensor).or_insert(stream);
        }
    }
    common_stream(ensemble, &ensemble.name, &streams, ensemble.output.iter().map(|output| &output.name))?;
    Ok(last_stream != REQUEST)
}

/// The one stream that all `tensors` belong to.
fn common_stream<'a>(
    ensemble: &ModelConfig,
    model: &str,
    streams: &BTreeMap<&str, usize>,
    tensors: impl Iterator<Item = &'a String>,
) -> Result<usize, Error> {
    let mut known = tensors.filter_map(|tensor| streams.get(tensor.as_str()));
    let first = known.next().copied().unwrap_or_default();
    if known.any(|stream| *stream != first) {
        invalid!(
            "in ensemble {}, step of model '{model}' receives inputs originated from different decoupled models",
            ensemble.name
        );
    }
    Ok(first)
}

/// Shapes of two tensors agree where both are fixed.
fn shapes_agree(a: &[i64], b: &[i64]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a == b || *a == -1 || *b == -1)
}

/// The ensembles among a set of models.
#[derive(Debug, Default)]
pub struct Dependencies {
    /// Ensembles that cannot be loaded, whatever their members do, each with the reason.
    pub errors: BTreeMap<String, Error>,
    /// The other models, each after all models that it uses.
    pub order: Vec<String>,
}

/// Checks which ensembles use models that are not there or, by any number of steps, themselves.
pub fn dependencies<'a>(models: impl IntoIterator<Item = &'a ModelConfig>) -> Dependencies {
    let models: BTreeMap<&str, &ModelConfig> =
        models.into_iter().map(|config| (config.name.as_str(), config)).collect();
    let members: BTreeMap<&str, BTreeSet<&str>> = models
        .iter()
        .map(|(name, config)| (*name, steps(config).iter().map(|step| step.model_name.as_str()).collect()))
        .collect();
    let mut found = Dependencies::default();
    for (name, used) in &members {
        let missing: Vec<&str> = used.iter().filter(|member| !models.contains_key(*member)).copied().collect();
        if !missing.is_empty() {
            found.errors.insert((*name).to_owned(), unavailable(name, &missing));
        } else if let Some(last) = circle(name, &members) {
            let text = format!("circular dependency between ensembles: {name} -> ... -> {last} -> {name}");
            found.errors.insert((*name).to_owned(), Error::invalid(text));
        }
    }

    // Models whose members all come before them; what hangs on an erroneous ensemble keeps its place
    // at the end, so that its own loading reports the member.
    let mut placed = BTreeSet::new();
    let mut waiting: Vec<&str> = models.keys().filter(|name| !found.errors.contains_key(**name)).copied().collect();
    while !waiting.is_empty() {
        let (ready, rest): (Vec<&str>, Vec<&str>) = waiting.iter().partition(|name| members[**name].is_subset(&placed));
        let ready = if ready.is_empty() { rest.clone() } else { ready };
        waiting.retain(|name| !ready.contains(name));
        found.order.extend(ready.iter().map(|name| (*name).to_owned()));
        placed.extend(ready);
    }
    found
}

/// The model that closes a circle from `start` back to `start`, if there is one.
fn circle<'a>(start: &str, members: &BTreeMap<&'a str, BTreeSet<&'a str>>) -> Option<&'a str> {
    let mut seen = BTreeSet::new();
    let (start, _) = members.get_key_value(start)?;
    let mut stack = vec![*start];
    while let Some(model) = stack.pop() {
        for member in members.get(model).into_iter().flatten() {
            if member == start {
                return Some(model);
            }
            if seen.insert(*member) {
                stack.push(member);
            }
        }
    }
    None
}

fn unavailable(ensemble: &str, missing: &[&str]) -> Error {
    let names = missing.join(", ");
    Error::invalid(format!("ensemble {ensemble} contains models that are not available or ambiguous: {names}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_agree_up_to_variable_dimensions() {
        for (a, b, expected) in [
            (&[][..], &[][..], true),
            (&[1, -1], &[1, 7], true),
            (&[-1], &[-1], true),
            (&[1], &[2], false),
            (&[1], &[1, 1], false),
        ] {
            assert_eq!(shapes_agree(a, b), expected, "{a:?} {b:?}");
        }
    }
}
