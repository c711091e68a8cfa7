//! One request on its way through an ensemble.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Instant,
};

use halimede_tensor::{Buffer, DType};
use parking_lot::Mutex;

use super::plan::{Plan, Step};
use crate::{
    error::{Code, Error},
    model::{Model, Signature, classify},
    request::{CorrelationId, InputTensor, Parameter, Request},
    response::{OutputTensor, Reply, Responder, Response},
    statistics::{ComputeDurations, FailureReason, Success},
    trace::Trace,
};

/// A request that runs. Steps hold it through their replies; the last one to answer finishes it.
pub(super) struct Run {
    plan: Arc<Plan>,
    /// Kept, so that the ensemble is not unloaded meanwhile.
    model: Arc<Model>,
    batch_size: usize,
    start: Instant,
    /// What the steps spent, those of members that are ensembles included.
    compute: Arc<Mutex<ComputeDurations>>,
    in_flight: Arc<AtomicUsize>,
    state: Mutex<State>,
}

struct State {
    /// `None` once it is answered.
    request: Option<Request>,
    tensors: Vec<Slot>,
    /// Steps that still have to be started.
    waiting: Vec<usize>,
    /// Steps that were started and have not answered.
    running: usize,
    error: Option<Error>,
}

/// A tensor of the ensemble.
#[derive(Clone)]
enum Slot {
    /// It is still to come.
    Unknown,
    /// It is an optional input that was not given, or an output that was not made.
    Absent,
    /// It is there.
    Present(Tensor),
}

#[derive(Clone)]
struct Tensor {
    dtype: DType,
    /// With the batch dimension, where it has one.
    shape: Vec<i64>,
    data: Buffer,
    /// Whether the first dimension is a batch.
    is_batched: bool,
}

/// The way back from a step.
struct StepReply {
    run: Arc<Run>,
    step: usize,
    /// Whether the outputs of the step begin with a batch dimension.
    is_batched: bool,
    /// The one response, where it did not say that it is the last.
    early: Option<Response>,
}

impl Reply for StepReply {
    fn send(&mut self, response: Response, last: bool) {
        self.early = Some(response);
        if last {
            self.end();
        }
    }

    fn end(&mut self) {
        let response = self.early.take().unwrap_or_else(|| {
            Response::failed(String::new(), 0, String::new(), Error::internal("a step gave no response"))
        });
        self.run.take(self.step, self.is_batched, response);
        self.run.proceed();
    }

    fn is_cancelled(&self) -> bool {
        self.run.is_cancelled()
    }
}

impl Run {
    /// Starts every step that has its inputs.
    pub fn start(
        plan: Arc<Plan>,
        model: Arc<Model>,
        mut request: Request,
        batch_size: usize,
        in_flight: Arc<AtomicUsize>,
    ) {
        let wants = |name: &str| request.outputs.is_empty() || request.outputs.iter().any(|output| output.name == name);
        let needed = plan.needed_steps(wants);
        let is_batched = plan.signature.is_batched();
        let mut tensors = vec![Slot::Unknown; plan.tensors];
        for (_, tensor) in &plan.inputs {
            tensors[*tensor] = Slot::Absent;
        }
        for input in std::mem::take(&mut request.inputs) {
            let index = plan.inputs.iter().find(|(name, _)| *name == input.name).map(|(_, index)| *index);
            if let (Some(index), Some(dtype)) = (index, input.dtype) {
                tensors[index] = Slot::Present(Tensor { dtype, shape: input.shape, data: input.data, is_batched });
            }
        }
        let waiting = (0..plan.steps.len()).filter(|step| needed[*step]).collect();
        let state = State { request: Some(request), tensors, waiting, running: 0, error: None };
        let run = Arc::new(Self {
            plan,
            model,
            batch_size,
            start: Instant::now(),
            compute: Arc::default(),
            in_flight,
            state: Mutex::new(state),
        });
        run.proceed();
    }

    /// Takes what a step answered.
    fn take(&self, step: usize, is_batched: bool, response: Response) {
        let mut state = self.state.lock();
        state.running -= 1;
        if let Some(error) = response.error {
            state.error.get_or_insert(error);
            drop(state);
            // Triton counts the failure of a step for the ensemble too, beside that of the request.
            self.model.recorder.failure(FailureReason::Other, self.start, Instant::now());
            return;
        }
        for (_, tensor) in &self.plan.steps[step].outputs {
            state.tensors[*tensor] = Slot::Absent;
        }
        for output in response.outputs {
            let OutputTensor { name, dtype, shape, data } = output;
            let tensor = self.plan.steps[step].outputs.iter().find(|(output, _)| *output == name);
            if let Some((_, tensor)) = tensor {
                state.tensors[*tensor] = Slot::Present(Tensor { dtype, shape, data, is_batched });
            }
        }
    }

    /// Starts the steps that have their inputs, and answers when nothing runs any more.
    fn proceed(self: &Arc<Self>) {
        let mut state = self.state.lock();
        if state.error.is_none() && state.is_cancelled() {
            state.error = Some(Error::cancelled("the request was cancelled"));
        }
        let mut started = Vec::new();
        if state.error.is_none() {
            match self.ready_steps(&mut state) {
                Ok(steps) => started = steps,
                Err(error) => state.error = Some(error),
            }
        }
        state.running += started.len();
        let is_over = state.running == 0;
        let request = if is_over { state.request.take() } else { None };
        drop(state);
        // Outside the lock, since a step may answer at once.
        for (model, request) in started {
            model.infer(request);
        }
        if let Some(request) = request {
            self.finish(request);
        }
    }

    fn ready_steps(self: &Arc<Self>, state: &mut State) -> Result<Vec<(Arc<Model>, Request)>, Error> {
        let is_known = |state: &State, step: &usize| {
            let inputs = &self.plan.steps[*step].inputs;
            inputs.iter().all(|(_, tensor)| !matches!(state.tensors[*tensor], Slot::Unknown))
        };
        let (ready, waiting): (Vec<usize>, Vec<usize>) =
            state.waiting.iter().copied().partition(|step| is_known(state, step));
        state.waiting = waiting;
        ready.into_iter().map(|step| self.step_request(state, step)).collect()
    }

    /// The request of one step; its reply comes back here.
    fn step_request(self: &Arc<Self>, state: &State, index: usize) -> Result<(Arc<Model>, Request), Error> {
        let step: &Step = &self.plan.steps[index];
        let members = self.plan.members.upgrade().ok_or_else(|| Error::unavailable("Server not ready"))?;
        let model = members.model(&step.model, step.version)?;
        let is_batched = model.signature.is_batched();
        let mut request = Request::new(
            step.model.clone(),
            Responder::new(StepReply { run: self.clone(), step: index, is_batched, early: None }),
        );
        if let Some(parent) = &state.request {
            request.id.clone_from(&parent.id);
            request.parameters.clone_from(&parent.parameters);
            request.sequence.clone_from(&parent.sequence);
            (request.priority, request.timeout_us) = (parent.priority, parent.timeout_us);
            request.trace = parent.trace.as_ref().map(Trace::child);
        }
        request.version = step.version;
        request.compute_total = Some(self.compute.clone());
        request.outputs = step.outputs.iter().map(|(name, _)| name.as_str().into()).collect();
        for (name, tensor) in &step.inputs {
            if let Slot::Present(tensor) = &state.tensors[*tensor] {
                request.inputs.push(InputTensor {
                    name: name.clone(),
                    dtype: Some(tensor.dtype),
                    shape: tensor.shape_for(member_dims(&model.signature, name), is_batched),
                    data: tensor.data.clone(),
                });
            }
        }
        Ok((model, request))
    }

    /// Answers the request and counts it.
    fn finish(&self, mut request: Request) {
        let mut state = self.state.lock();
        let error = state.error.take();
        let tensors = std::mem::take(&mut state.tensors);
        drop(state);
        let place = format!("in ensemble '{}', ", self.plan.name);
        let outputs = match error {
            Some(error) => Err(Error { code: error.code, message: format!("{place}{}", error.message) }),
            None => self.outputs(&request, tensors, &place),
        };
        let (start, end) = (request.timestamps.start, Instant::now());
        let recorder = &self.model.recorder;
        let compute = *self.compute.lock();
        let (outputs, error) = match outputs {
            Ok(outputs) => {
                recorder.success(&Success {
                    id: &request.id,
                    batch_size: self.batch_size,
                    start,
                    queued: request.timestamps.queued,
                    compute_start: self.start,
                    end,
                    compute,
                });
                recorder.execution(self.batch_size, compute);
                (outputs, None)
            }
            Err(error) => {
                let is_cancelled = error.code == Code::Cancelled;
                let reason = if is_cancelled { FailureReason::Canceled } else { FailureReason::Other };
                recorder.failure(reason, start, end);
                (Vec::new(), Some(error))
            }
        };
        if let Some(total) = &request.compute_total {
            *total.lock() += compute;
        }
        let response = Response {
            model: std::mem::take(&mut request.model),
            version: self.model.version,
            id: std::mem::take(&mut request.id),
            parameters: if error.is_none() { sequence_parameters(&request) } else { Vec::new() },
            outputs,
            error,
            is_refusal: false,
        };
        request.responder.send(response, true);
        self.in_flight.fetch_sub(1, SeqCst);
    }

    fn outputs(&self, request: &Request, tensors: Vec<Slot>, place: &str) -> Result<Vec<OutputTensor>, Error> {
        let signature = &self.plan.signature;
        let mut outputs = Vec::new();
        for (name, tensor) in &self.plan.outputs {
            let wanted = request.outputs.iter().find(|output| output.name == *name);
            if wanted.is_none() && !request.outputs.is_empty() {
                continue;
            }
            match (&tensors[*tensor], signature.output(name)) {
                (Slot::Present(tensor), Some(spec)) => {
                    let dims = spec.reshape.as_ref().unwrap_or(&spec.dims);
                    let shape =
                        spec.client_shape(tensor.shape_for(Some(dims), signature.is_batched()), signature.is_batched());
                    let output =
                        OutputTensor { name: name.clone(), dtype: tensor.dtype, shape, data: tensor.data.clone() };
                    outputs.push(match wanted {
                        Some(wanted) if wanted.classification > 0 => {
                            classify(output, spec, wanted.classification, signature.is_batched())?
                        }
                        _ => output,
                    });
                }
                (Slot::Unknown, _) => {
                    return Err(Error::invalid(format!(
                        "{place}{}unexpected deadlock, at least one output is not set while no more ensemble steps \
                         can be made",
                        request.log_prefix()
                    )));
                }
                _ => {}
            }
        }
        Ok(outputs)
    }

    fn is_cancelled(&self) -> bool {
        self.state.lock().is_cancelled()
    }
}

impl State {
    fn is_cancelled(&self) -> bool {
        self.request.as_ref().is_some_and(|request| request.responder.is_cancelled())
    }
}

impl Tensor {
    /// The shape for whoever expects `dims` behind a batch dimension (`batched`) or without one. Where
    /// only one side batches, a batch of one is put in front or taken away if the rest then fits.
    fn shape_for(&self, dims: Option<&Vec<i64>>, batched: bool) -> Vec<i64> {
        let Some(dims) = dims else { return self.shape.clone() };
        let fits = agree(dims, &self.shape);
        match (batched, self.is_batched) {
            (true, false) if fits => [&[1], &self.shape[..]].concat(),
            (false, true) if !fits && self.shape.first() == Some(&1) => self.shape[1..].to_vec(),
            _ => self.shape.clone(),
        }
    }
}

/// The dimensions that a member expects of an input, without the batch.
fn member_dims<'a>(signature: &'a Signature, input: &str) -> Option<&'a Vec<i64>> {
    signature.input(input).map(|spec| &spec.dims)
}

/// Whether two shapes agree where both are fixed.
fn agree(a: &[i64], b: &[i64]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a == b || *a == -1 || *b == -1)
}

/// The sequence of the request, which Triton repeats in responses of ensembles.
fn sequence_parameters(request: &Request) -> Vec<(String, Parameter)> {
    let id = match &request.sequence.id {
        CorrelationId::Int(id) => Parameter::Int(id.cast_signed()),
        CorrelationId::String(id) => Parameter::String(id.clone()),
    };
    vec![
        ("sequence_id".to_owned(), id),
        ("sequence_start".to_owned(), Parameter::Bool(request.sequence.start)),
        ("sequence_end".to_owned(), Parameter::Bool(request.sequence.end)),
    ]
}
