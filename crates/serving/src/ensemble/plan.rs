//! The data flow of an ensemble, worked out once when it is loaded.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
    },
    time::Instant,
};

use super::{limit::Limiter, run::Run};
use crate::{
    config::{ModelConfig, ensemble::steps, proto::model_config::SchedulingChoice},
    error::Error,
    model::{Model, Signature},
    request::Request,
};

/// Finds the models that an ensemble uses, at the time of each request.
pub(crate) trait Members: Send + Sync {
    /// The version of a model, `None` for the newest that is ready.
    fn model(&self, name: &str, version: Option<i64>) -> Result<Arc<Model>, Error>;
}

/// Runs the requests of one ensemble.
#[derive(Debug)]
pub(crate) struct Ensemble {
    plan: Arc<Plan>,
    /// Requests that are not answered yet.
    in_flight: Arc<AtomicUsize>,
    stopped: AtomicBool,
}

/// Steps and the tensors between them.
pub(super) struct Plan {
    pub name: String,
    pub members: Weak<dyn Members>,
    pub signature: Arc<Signature>,
    pub steps: Vec<Step>,
    /// Number of tensors.
    pub tensors: usize,
    /// The tensor of each input of the ensemble, in the order of the configuration.
    pub inputs: Vec<(String, usize)>,
    /// The tensor of each output of the ensemble, in the order of the configuration.
    pub outputs: Vec<(String, usize)>,
    /// By step: how many requests may be under way; none where there is no limit.
    pub limiters: Vec<Limiter>,
}

/// The run of one model.
#[derive(Debug)]
pub(super) struct Step {
    pub model: String,
    pub version: Option<i64>,
    /// Input of the model and the tensor it is given.
    pub inputs: Vec<(String, usize)>,
    /// Output of the model and the tensor it becomes.
    pub outputs: Vec<(String, usize)>,
}

impl std::fmt::Debug for Plan {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Plan").field("name", &self.name).field("steps", &self.steps).finish_non_exhaustive()
    }
}

impl Ensemble {
    /// The ensemble of a configuration that was validated.
    pub fn new(config: &ModelConfig, signature: Arc<Signature>, members: Weak<dyn Members>) -> Self {
        let plan = Plan::new(config, signature, members);
        Self { plan: Arc::new(plan), in_flight: Arc::default(), stopped: AtomicBool::new(false) }
    }

    /// Runs a prepared request with `batch_size` inferences.
    pub fn infer(&self, model: &Arc<Model>, mut request: Request, batch_size: usize) {
        request.timestamps.queued = Instant::now();
        if self.stopped.load(SeqCst) {
            let text = "Server is stopping, scheduler for model has stopped accepting new inference requests";
            let error = Error::unavailable(format!("{}{text}", request.log_prefix()));
            return request.refuse(model.version, error);
        }
        self.in_flight.fetch_add(1, SeqCst);
        Run::start(self.plan.clone(), model.clone(), request, batch_size, self.in_flight.clone());
    }

    /// Requests that are not answered yet.
    pub fn in_flight(&self) -> usize {
        self.in_flight.load(SeqCst)
    }

    /// Refuses new requests.
    pub fn stop(&self) {
        self.stopped.store(true, SeqCst);
    }
}

/// A limit for each step, where the configuration has one.
fn limiters(config: &ModelConfig) -> Vec<Limiter> {
    let Some(SchedulingChoice::EnsembleScheduling(scheduling)) = &config.scheduling_choice else { return Vec::new() };
    let max = scheduling.max_inflight_requests as usize;
    if max == 0 {
        return Vec::new();
    }
    tracing::info!("Ensemble model '{}' configured with max_inflight_requests: {max}", config.name);
    scheduling.step.iter().map(|_| Limiter::new(max)).collect()
}

impl Plan {
    /// The models of all steps, in their order.
    ///
    /// # Errors
    /// One of them is not loaded, or the server is going down.
    pub fn models(&self) -> Result<Vec<Arc<Model>>, Error> {
        let members = self.members.upgrade().ok_or_else(|| Error::unavailable("Server not ready"))?;
        self.steps.iter().map(|step| members.model(&step.model, step.version)).collect()
    }

    /// Works out the data flow of a configuration that was validated.
    pub fn new(config: &ModelConfig, signature: Arc<Signature>, members: Weak<dyn Members>) -> Self {
        let mut indices = BTreeMap::new();
        let mut index = |name: &String| {
            let next = indices.len();
            (*indices.entry(name.clone()).or_insert(next), name.clone())
        };
        let mut named = |name: &String| {
            let (index, name) = index(name);
            (name, index)
        };
        let inputs = config.input.iter().map(|input| named(&input.name)).collect();
        let outputs = config.output.iter().map(|output| named(&output.name)).collect();
        let steps = steps(config)
            .iter()
            .map(|step| {
                let mut map = |pairs: &BTreeMap<String, String>| {
                    pairs.iter().map(|(name, tensor)| (name.clone(), named(tensor).1)).collect()
                };
                Step {
                    model: step.model_name.clone(),
                    version: (step.model_version > 0).then_some(step.model_version),
                    inputs: map(&step.input_map),
                    outputs: map(&step.output_map),
                }
            })
            .collect();
        Self {
            name: config.name.clone(),
            members,
            signature,
            limiters: limiters(config),
            steps,
            tensors: indices.len(),
            inputs,
            outputs,
        }
    }

    /// Which steps are needed for `outputs`; all outputs where that is empty.
    pub fn needed_steps(&self, wants: impl Fn(&str) -> bool) -> Vec<bool> {
        let mut needed = vec![false; self.steps.len()];
        let mut open: Vec<usize> =
            self.outputs.iter().filter(|(name, _)| wants(name)).map(|(_, tensor)| *tensor).collect();
        while let Some(tensor) = open.pop() {
            let writer = self.steps.iter().position(|step| step.outputs.iter().any(|(_, output)| *output == tensor));
            if let Some(step) = writer.filter(|step| !needed[*step]) {
                needed[step] = true;
                open.extend(self.steps[step].inputs.iter().map(|(_, input)| *input));
            }
        }
        needed
    }
}

/// Members where there are none.
#[cfg(test)]
pub(super) mod no_members {
    use super::*;

    pub struct None;

    impl Members for None {
        fn model(&self, name: &str, _: Option<i64>) -> Result<Arc<Model>, Error> {
            Err(Error::not_found(name))
        }
    }
}
