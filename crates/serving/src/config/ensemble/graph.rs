//! The data flow of an ensemble (`ValidateEnsembleSchedulingConfig`): every tensor is written once, can
//! be computed from the ensemble's inputs, and is used.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::super::proto::{ModelConfig, model_ensembling::Step};
use super::super::validate::ENSEMBLE;
use super::steps;
use crate::Error;

/// Checks an ensemble without looking at its members.
pub(in super::super) fn validate_scheduling(config: &ModelConfig) -> Result<(), Error> {
    let name = &config.name;
    if config.platform != ENSEMBLE {
        invalid!("ensemble scheduling cannot be set for model '{name}' whose platform is not {ENSEMBLE}");
    }
    if !config.instance_group.is_empty() {
        invalid!("instance group should not be specified for ensemble '{name}'");
    }
    if config.optimization.is_some() {
        invalid!("optimization should not be specified for ensemble '{name}'");
    }
    if !config.model_warmup.is_empty() {
        invalid!("model_warmup can not be specified for ensemble '{name}'");
    }
    if steps(config).is_empty() {
        invalid!("must specify 'step' for ensemble '{name}'");
    }
    let flow = Flow::new(config)?;
    flow.check_inputs_are_used(config)?;
    let inputs = config.input.iter().map(|input| input.name.as_str());
    let written = run_order(config).into_iter().flat_map(|step| step.output_map.values().map(String::as_str));
    let ready: BTreeSet<&str> = inputs.chain(written).collect();
    flow.check_outputs_are_written(config, &ready)?;
    flow.check_all_are_used(config, &ready)
}

/// The steps of an ensemble in an order in which each comes after those whose outputs it reads. Steps
/// whose inputs never become complete are missing.
pub fn run_order(config: &ModelConfig) -> Vec<&Step> {
    let mut readers = BTreeMap::<&str, Vec<usize>>::new();
    let mut missing = Vec::with_capacity(steps(config).len());
    for (index, step) in steps(config).iter().enumerate() {
        let inputs: BTreeSet<&str> = step.input_map.values().map(String::as_str).collect();
        missing.push(inputs.len());
        inputs.into_iter().for_each(|tensor| readers.entry(tensor).or_default().push(index));
    }
    let mut order = Vec::with_capacity(missing.len());
    let mut ready: BTreeSet<&str> = config.input.iter().map(|input| input.name.as_str()).collect();
    let mut queue: VecDeque<&str> = ready.iter().copied().collect();
    while let Some(tensor) = queue.pop_front() {
        for &index in readers.get(tensor).into_iter().flatten() {
            missing[index] -= 1;
            if missing[index] == 0 {
                let step = &steps(config)[index];
                order.push(step);
                queue.extend(step.output_map.values().map(String::as_str).filter(|tensor| ready.insert(tensor)));
            }
        }
    }
    order
}

/// Which step writes a tensor, and whether any step reads it.
#[derive(Default)]
struct Tensor {
    writer: Option<usize>,
    is_read: bool,
}

struct Flow<'a> {
    steps: &'a [Step],
    tensors: BTreeMap<&'a str, Tensor>,
}

impl<'a> Flow<'a> {
    fn new(config: &'a ModelConfig) -> Result<Self, Error> {
        let name = &config.name;
        let steps = steps(config);
        let mut tensors = BTreeMap::<&str, Tensor>::new();
        for (index, step) in steps.iter().enumerate() {
            for (field, is_missing) in [
                ("model_name", step.model_name.is_empty()),
                ("input_map", step.input_map.is_empty()),
                ("output_map", step.output_map.is_empty()),
            ] {
                if is_missing {
                    invalid!("must specify '{field}' in step {index} of ensemble '{name}'");
                }
            }
            for tensor in step.output_map.values() {
                if tensors.entry(tensor).or_default().writer.replace(index).is_some() {
                    invalid!(
                        "ensemble tensor '{tensor}' can appear in an output map only once for ensemble '{name}' \
                         step {index}"
                    );
                }
            }
            for tensor in step.input_map.values() {
                tensors.entry(tensor).or_default().is_read = true;
            }
        }
        Ok(Self { steps, tensors })
    }

    fn check_inputs_are_used(&self, config: &ModelConfig) -> Result<(), Error> {
        match config.input.iter().find(|input| !self.tensors.contains_key(input.name.as_str())) {
            // Triton has one quotation mark too few here.
            Some(input) => {
                invalid!("ensemble input '{}' for ensemble {}' is not used", input.name, config.name)
            }
            None => Ok(()),
        }
    }

    fn check_outputs_are_written(&self, config: &ModelConfig, ready: &BTreeSet<&str>) -> Result<(), Error> {
        let ensemble = &config.name;
        for output in &config.output {
            let name = output.name.as_str();
            if !self.tensors.contains_key(name) {
                invalid!("ensemble output '{name}' for ensemble {ensemble}' is not used");
            }
            if !ready.contains(name) {
                let source = self.unready_source(name, ready);
                if source == name {
                    invalid!("output '{name}' for ensemble '{ensemble}' is not written");
                }
                invalid!(
                    "output '{name}' for ensemble '{ensemble}' is not written: at least one of its depending \
                     tensors, '{source}', is not connected"
                );
            }
        }
        Ok(())
    }

    /// Walks from a tensor that is not ready to the one it waits for in the end. Circles are possible.
    fn unready_source(&self, output: &'a str, ready: &BTreeSet<&str>) -> &'a str {
        let mut seen = BTreeSet::new();
        let mut current = output;
        loop {
            let writer = self.tensors.get(current).and_then(|tensor| tensor.writer);
            let inputs = writer.map(|step| &self.steps[step].input_map).into_iter().flat_map(BTreeMap::values);
            let next = inputs.map(String::as_str).find(|tensor| !ready.contains(tensor) && !seen.contains(tensor));
            let Some(next) = next else {
                return current;
            };
            seen.insert(next);
            current = next;
        }
    }

    fn check_all_are_used(&self, config: &ModelConfig, ready: &BTreeSet<&str>) -> Result<(), Error> {
        let outputs: BTreeSet<&str> = config.output.iter().map(|output| output.name.as_str()).collect();
        let unused = self
            .tensors
            .iter()
            .find(|(name, tensor)| !(outputs.contains(*name) || ready.contains(*name) && tensor.is_read));
        match unused {
            Some((name, _)) => invalid!("ensemble tensor '{name}' is unused in ensemble '{}'", config.name),
            None => Ok(()),
        }
    }
}
