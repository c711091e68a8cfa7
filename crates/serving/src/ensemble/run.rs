//! One request on its way through an ensemble.

use std::{
    collections::{BTreeMap, VecDeque},
    mem,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::{Duration, Instant},
};

use parking_lot::{Condvar, Mutex, MutexGuard};

use super::{
    flow::{At, Flow, Ready, Tensor},
    plan::Plan,
    reply::{Brought, StepReply, sequence_parameters},
};
use crate::{
    error::{Code, Error},
    model::{Model, classify},
    request::{InputTensor, Request},
    response::{OutputTensor, Responder, Response},
    statistics::{ComputeTotal, FailureReason, Success},
    trace::Trace,
};

/// How long a decoupled step is kept from giving its next response while its last ones find no room. Then it goes on:
/// it may be the one that others wait for.
const ROOM_MAX: Duration = Duration::from_secs(300);
/// How often whoever waits looks whether the client is still there.
const ROOM_LOOK: Duration = Duration::from_millis(100);

/// A request that runs. Steps hold it through their replies; the last one to answer finishes it.
pub(super) struct Run {
    plan: Arc<Plan>,
    /// Kept, so that the ensemble is not unloaded meanwhile.
    model: Arc<Model>,
    /// The models of the steps, in their order, as they were when the request came: one that is unloaded or replaced
    /// meanwhile still answers it.
    members: Vec<Arc<Model>>,
    batch_size: usize,
    start: Instant,
    /// What the steps spent, those of members that are ensembles included.
    compute: Arc<ComputeTotal>,
    in_flight: Arc<AtomicUsize>,
    state: Mutex<State>,
    /// Wakes decoupled steps that wait for room.
    room: Condvar,
}

struct State {
    /// `None` once it is answered. Without its responder.
    request: Option<Request>,
    /// `None` while a thread sends, and after the last response.
    responder: Option<Responder>,
    flow: Flow,
    /// Steps that have their inputs and have not answered to the end.
    running: usize,
    /// Those of them that a limit keeps from being started.
    held: usize,
    error: Option<Error>,
    /// A response that may be the last.
    answer: Option<Response>,
    has_answered: bool,
    /// What is to be sent, in order.
    outbox: VecDeque<Message>,
}

/// Something for the client.
enum Message {
    /// Others follow.
    Response(Response),
    /// Nothing follows.
    End { request: Box<Request>, response: Option<Response> },
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
        let mut flow = Flow::new(&plan, wants);
        let is_batched = plan.signature.is_batched();
        let mut inputs = BTreeMap::new();
        for input in mem::take(&mut request.inputs) {
            let index = plan.inputs.iter().find(|(name, _)| *name == input.name).map(|(_, index)| *index);
            if let (Some(index), Some(dtype)) = (index, input.dtype) {
                inputs.insert(index, Tensor { dtype, shape: input.shape, data: input.data, is_batched });
            }
        }
        let ready = flow.begin(&plan, inputs);
        let (members, error) = match plan.models() {
            Ok(members) => (members, None),
            Err(error) => (Vec::new(), Some(error)),
        };
        let responder = mem::replace(&mut request.responder, Responder::closed());
        let state = State {
            request: Some(request),
            responder: Some(responder),
            flow,
            running: 0,
            held: 0,
            error,
            answer: None,
            has_answered: false,
            outbox: VecDeque::new(),
        };
        let run = Arc::new(Self {
            plan,
            model,
            members,
            batch_size,
            start: Instant::now(),
            compute: Arc::default(),
            in_flight,
            state: Mutex::new(state),
            room: Condvar::new(),
        });
        run.proceed(run.state.lock(), ready);
    }

    /// Takes what a step answered; `None` where it says only that no response follows.
    pub fn answered(self: &Arc<Self>, at: At, is_decoupled: bool, brought: Option<Result<Brought, Error>>, last: bool) {
        let mut state = self.state.lock();
        if last {
            state.running -= 1;
        }
        let mut ready = Ready::default();
        match brought {
            Some(Ok(Brought { outputs, sequence })) if state.error.is_none() => {
                ready = state.flow.take(&self.plan, at, is_decoupled, outputs, sequence);
            }
            Some(Err(error)) if state.error.is_none() => {
                state.error = Some(error);
                // Triton counts the failure of a step for the ensemble too, beside that of the request.
                self.model.recorder.failure(FailureReason::Other, self.start, Instant::now());
            }
            _ => {}
        }
        self.proceed(state, ready);
        if last && let Some(limiter) = self.plan.limiters.get(at.step) {
            limiter.leave();
        }
    }

    /// Starts the steps that have their inputs, sends the response that has its outputs, and ends the request when
    /// nothing runs any more.
    fn proceed(self: &Arc<Self>, mut state: MutexGuard<'_, State>, ready: Ready) {
        if state.error.is_none() && state.is_cancelled() {
            state.error = Some(Error::cancelled("the request was cancelled"));
        }
        let mut started = Vec::new();
        if state.error.is_none() {
            match self.prepare(&mut state, ready) {
                Ok(steps) => started = steps,
                Err(error) => state.error = Some(error),
            }
        }
        state.running += started.len();
        if !self.plan.limiters.is_empty() {
            state.held += started.len();
        }
        if state.running == 0 {
            self.finish(&mut state);
        } else if self.plan.signature.is_decoupled
            && let Some(response) = state.answer.take()
        {
            state.outbox.push_back(Message::Response(response));
        }
        let is_failed = state.error.is_some();
        drop(state);
        if is_failed {
            self.room.notify_all();
        }
        // Outside the lock, since a step may answer at once.
        for (at, model, request) in started {
            match self.plan.limiters.get(at.step) {
                None => model.infer(request),
                Some(limiter) => {
                    let run = self.clone();
                    limiter.enter(move || run.start_held(&model, request));
                }
            }
        }
        self.send();
    }

    /// Makes the requests of steps that are ready, and the response.
    fn prepare(self: &Arc<Self>, state: &mut State, ready: Ready) -> Result<Vec<(At, Arc<Model>, Request)>, Error> {
        if let Some(round) = ready.answer {
            let response = self.response(state, round)?;
            if let Some(before) = state.answer.replace(response) {
                state.outbox.push_back(Message::Response(before));
            }
            state.has_answered = true;
        }
        let models = ready.steps.iter().map(|at| self.members[at.step].clone()).collect::<Vec<_>>();
        // What may fail is behind: a request that is made is started, since its drop would be an answer.
        let steps = ready.steps.into_iter().zip(models);
        Ok(steps.map(|(at, model)| (at, model.clone(), self.step_request(state, at, &model))).collect())
    }

    /// Starts a step that a limit let pass.
    fn start_held(&self, model: &Arc<Model>, request: Request) {
        let mut state = self.state.lock();
        state.held -= 1;
        let is_over = state.error.is_some() || state.is_cancelled();
        drop(state);
        self.room.notify_all();
        match is_over {
            false => model.infer(request),
            true => request.fail(model.version, Error::cancelled("the request was cancelled")),
        }
    }

    /// Whether steps may have to wait for others.
    pub fn is_limited(&self) -> bool {
        !self.plan.limiters.is_empty()
    }

    /// Waits until the steps that have their inputs are under way, so that a decoupled step makes no more than the
    /// steps behind it can take. It is the step's thread that waits.
    pub fn wait_for_room(&self) {
        if !self.is_limited() {
            return;
        }
        let until = Instant::now() + ROOM_MAX;
        let mut state = self.state.lock();
        while state.held > 0 && state.error.is_none() && !state.is_cancelled() {
            if Instant::now() >= until {
                tracing::error!(
                    "[Internal Error] Ensemble '{}' unable to schedule a step for {} seconds. Proceeding to avoid \
                     deadlock.",
                    self.plan.name,
                    ROOM_MAX.as_secs()
                );
                return;
            }
            self.room.wait_for(&mut state, ROOM_LOOK);
        }
    }

    /// The request of one step; its reply comes back here.
    fn step_request(self: &Arc<Self>, state: &mut State, at: At, model: &Model) -> Request {
        let step = &self.plan.steps[at.step];
        let (is_batched, is_decoupled) = (model.signature.is_batched(), model.signature.is_decoupled);
        let (tensors, told) = state.flow.inputs(&self.plan, at);
        let parent = state.request.as_ref();
        let sequence = told.or_else(|| parent.map(|parent| parent.sequence.clone())).unwrap_or_default();
        let reply =
            StepReply { run: self.clone(), at, is_batched, is_decoupled, sequence: sequence.clone(), early: None };
        let mut request = Request::new(step.model.clone(), Responder::new(reply));
        if let Some(parent) = parent {
            request.id.clone_from(&parent.id);
            request.parameters.clone_from(&parent.parameters);
            (request.priority, request.timeout_us) = (parent.priority, parent.timeout_us);
            request.trace = parent.trace.as_ref().map(Trace::child);
        }
        request.sequence = sequence;
        request.version = step.version;
        request.compute_total = Some(self.compute.clone());
        request.outputs = step.outputs.iter().map(|(name, _)| name.as_str().into()).collect();
        for ((name, _), tensor) in step.inputs.iter().zip(tensors) {
            let Some(tensor) = tensor else { continue };
            let dims = model.signature.input(name).map(|spec| &spec.dims);
            let shape = tensor.shape_for(dims, is_batched);
            request.inputs.push(InputTensor {
                name: name.clone(),
                dtype: Some(tensor.dtype),
                shape,
                data: tensor.data,
            });
        }
        request
    }

    /// The response with the outputs of a round.
    fn response(&self, state: &mut State, round: u64) -> Result<Response, Error> {
        let (tensors, sequence) = state.flow.outputs(&self.plan, round);
        let Some(request) = &state.request else { return Err(Error::internal("the request is answered")) };
        let signature = &self.plan.signature;
        let mut outputs = Vec::new();
        for ((name, _), tensor) in self.plan.outputs.iter().zip(tensors) {
            let wanted = request.outputs.iter().find(|output| output.name == *name);
            let Some(tensor) = tensor else {
                if wanted.is_some() || request.outputs.is_empty() {
                    tracing::debug!("Composing models did not output tensor {name}");
                }
                continue;
            };
            let Some(spec) = signature.output(name) else { continue };
            let dims = spec.reshape.as_ref().unwrap_or(&spec.dims);
            let shape = spec.client_shape(tensor.shape_for(Some(dims), signature.is_batched()), signature.is_batched());
            let output = OutputTensor { name: name.clone(), dtype: tensor.dtype, shape, data: tensor.data };
            outputs.push(match wanted {
                Some(wanted) if wanted.classification > 0 => {
                    classify(output, spec, wanted.classification, signature.is_batched())?
                }
                _ => output,
            });
        }
        Ok(Response {
            model: request.model.clone(),
            version: self.model.version,
            id: request.id.clone(),
            parameters: sequence_parameters(&sequence.unwrap_or_else(|| request.sequence.clone())),
            outputs,
            error: None,
            is_refusal: false,
        })
    }

    /// Ends the request and counts it.
    fn finish(&self, state: &mut State) {
        let Some(mut request) = state.request.take() else { return };
        let mut answer = state.answer.take();
        let error = state.error.take().or_else(|| {
            let is_missing = !state.has_answered && !self.plan.signature.is_decoupled;
            let text = "unexpected deadlock, at least one output is not set while no more ensemble steps can be made";
            is_missing.then(|| Error::invalid(format!("{}{text}", request.log_prefix())))
        });
        let parent = request.compute_total.take();
        self.count(&request, error.as_ref(), parent);
        if let Some(error) = error {
            // The client of a decoupled ensemble has what was complete before.
            if self.plan.signature.is_decoupled
                && let Some(response) = answer.take()
            {
                state.outbox.push_back(Message::Response(response));
            }
            let text = format!("in ensemble '{}', {}", self.plan.name, error.message);
            let error = Error { message: text, ..error };
            answer = Some(Response::failed(request.model.clone(), self.model.version, request.id.clone(), error));
        }
        state.outbox.push_back(Message::End { request: Box::new(request), response: answer });
    }

    fn count(&self, request: &Request, error: Option<&Error>, parent: Option<Arc<ComputeTotal>>) {
        let recorder = self.model.recorder.clone();
        let (start, queued, began, end) =
            (request.timestamps.start, request.timestamps.queued, self.start, Instant::now());
        if let Some(error) = error {
            let is_cancelled = error.code == Code::Cancelled;
            let reason = if is_cancelled { FailureReason::Canceled } else { FailureReason::Other };
            recorder.failure(reason, start, end);
        }
        let (is_success, batch_size, id) = (error.is_none(), self.batch_size, request.id.clone());
        let count = move |compute| {
            if is_success {
                let id = &id;
                recorder.success(&Success { id, batch_size, start, queued, compute_start: began, end, compute });
                recorder.execution(batch_size, compute);
            }
            if let Some(parent) = parent {
                parent.add(compute);
            }
        };
        match self.plan.signature.is_decoupled {
            // Before the client hears of it, so that whoever asks next sees it.
            false => count(self.compute.spent()),
            // A decoupled step may go on after its last response.
            true => self.compute.finally(count),
        }
    }

    /// Sends what is ready, in order and outside the lock; one thread at a time.
    fn send(&self) {
        let mut state = self.state.lock();
        while state.responder.is_some()
            && let Some(message) = state.outbox.pop_front()
        {
            let responder = state.responder.take();
            drop(state);
            let Some(mut responder) = responder else { return };
            match message {
                Message::Response(response) => responder.send(response, false),
                Message::End { request, response } => {
                    match response {
                        Some(response) => responder.send(response, true),
                        None => responder.end(),
                    }
                    drop(request);
                    self.in_flight.fetch_sub(1, SeqCst);
                    return;
                }
            }
            state = self.state.lock();
            state.responder = Some(responder);
        }
    }

    pub fn is_cancelled(&self) -> bool {
        self.state.lock().is_cancelled()
    }
}

impl State {
    /// Not while a response is being sent: who asks will ask again.
    fn is_cancelled(&self) -> bool {
        self.responder.as_ref().is_some_and(Responder::is_cancelled)
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

/// Whether two shapes agree where both are fixed.
fn agree(a: &[i64], b: &[i64]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a == b || *a == -1 || *b == -1)
}
