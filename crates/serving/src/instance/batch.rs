//! Requests that run together, and what becomes their responses.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use halimede_tensor::{Buffer, DType};

use super::sender::ResponseSender;
use crate::{
    error::Error,
    model::Signature,
    request::{CorrelationId, InputTensor, Parameter, Request, RequestedOutput},
    response::{OutputTensor, Response},
    statistics::{ComputeTimes, FailureReason, Recorder, Success},
    trace::Activity,
};

/// The requests of one execution.
#[derive(Debug)]
pub struct Batch {
    pub(super) signature: Arc<Signature>,
    version: i64,
    recorder: Arc<Recorder>,
    pub(super) entries: Vec<Entry>,
    start: Instant,
    input_end: Option<Instant>,
    output_start: Option<Instant>,
    /// Whether it counts as an execution whatever becomes of its requests.
    has_run: bool,
    /// Held by what answers its requests from elsewhere.
    senders: Arc<()>,
}

/// A request of a batch and what becomes its response.
#[derive(Debug)]
pub(crate) struct Entry {
    pub request: Request,
    /// Inferences in the request, at least 1.
    pub batch_size: usize,
    /// Its place where responses keep the order of requests.
    pub ticket: u64,
    /// The place of its sequence in the instance.
    pub slot: usize,
    /// Whether it fills the place of a sequence that has no request, so that nobody hears of it.
    pub is_stand_in: bool,
    /// Inputs that the client gave; those behind are signals and states of its sequence.
    pub given: usize,
    /// States for the next request of its sequence, by their place among the states of the model.
    pub states: Vec<(usize, InputTensor)>,
    /// Its model, where inputs of other shapes may share its batch.
    pub ragged: Option<Arc<Signature>>,
    /// What counts it as in flight, together with its [`ResponseSender`]; `None` where the queue does.
    in_flight: Option<Arc<InFlight>>,
    /// Whether it runs again.
    runs_again: bool,
    outputs: Vec<OutputTensor>,
    parameters: Vec<(String, Parameter)>,
    error: Option<Error>,
}

impl Entry {
    pub fn new(request: Request, batch_size: usize) -> Self {
        Self {
            request,
            batch_size,
            ticket: 0,
            slot: 0,
            is_stand_in: false,
            given: 0,
            states: Vec::new(),
            ragged: None,
            in_flight: None,
            runs_again: false,
            outputs: Vec::new(),
            parameters: Vec::new(),
            error: None,
        }
    }

    /// A request that nobody made, in the place of a sequence.
    pub fn stand_in(request: Request, batch_size: usize, slot: usize) -> Self {
        Self { slot, is_stand_in: true, ..Self::new(request, batch_size) }
    }

    /// Whether inputs `name` of other shapes may share its batch.
    pub fn is_ragged(&self, name: &str) -> bool {
        self.ragged.as_ref().and_then(|model| model.input(name)).is_some_and(|input| input.is_ragged)
    }

    /// What counts it as in flight from now on, with whoever else has it.
    fn in_flight(&mut self, recorder: &Arc<Recorder>) -> Arc<InFlight> {
        let begin = || {
            // Nobody has counted a request that nobody made.
            recorder.enter(usize::from(self.is_stand_in));
            Arc::new(InFlight(recorder.clone()))
        };
        self.in_flight.get_or_insert_with(begin).clone()
    }

    /// Whether somebody else counts it as in flight.
    pub fn is_counted(&self) -> bool {
        self.in_flight.is_some()
    }

    /// Whether it is answered with an error.
    pub fn has_failed(&self) -> bool {
        self.error.is_some()
    }
}

/// A request in flight, until neither its batch nor its sender is there.
#[derive(Debug)]
pub(super) struct InFlight(Arc<Recorder>);

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.leave(1);
    }
}

/// What is left of a batch whose requests are answered.
pub(crate) struct Finished {
    /// How long the execution took.
    pub took: Duration,
    /// Requests that run again.
    pub again: Vec<Entry>,
    /// Sequences whose requests do not run again, with their places.
    pub ended: Vec<(CorrelationId, usize)>,
}

/// An input of requests of a batch.
#[derive(Debug, Clone)]
pub struct Gathered {
    /// Element type.
    pub dtype: DType,
    /// Dimensions, those of the requests added up along the batch dimension; one for all elements of an input whose
    /// requests may have different shapes.
    pub shape: Vec<i64>,
    /// The elements in wire form, in the order of the requests; shared with the request where there is
    /// only one.
    pub data: Buffer,
}

impl Gathered {
    /// The tensor as an output of that name.
    pub fn named(self, name: String) -> OutputTensor {
        OutputTensor { name, dtype: self.dtype, shape: self.shape, data: self.data }
    }
}

impl Batch {
    pub(crate) fn new(signature: Arc<Signature>, version: i64, recorder: Arc<Recorder>, entries: Vec<Entry>) -> Self {
        let (start, senders) = (Instant::now(), Arc::default());
        Self {
            signature,
            version,
            recorder,
            entries,
            start,
            input_end: None,
            output_start: None,
            has_run: false,
            senders,
        }
    }

    /// The same whose [`ResponseSender`]s hold `senders`, as long as they are.
    pub(super) fn held_by(self, senders: &Arc<()>) -> Self {
        Self { senders: senders.clone(), ..self }
    }

    /// What answers request `index` from now on, any number of times, also after the execution. The end of the
    /// execution counts the request, as a failure after [`Batch::fail`], and does not answer it.
    pub fn response_sender(&mut self, index: usize) -> ResponseSender {
        let entry = &mut self.entries[index];
        let in_flight = entry.in_flight(&self.recorder);
        let (signature, recorder, senders) = (self.signature.clone(), self.recorder.clone(), self.senders.clone());
        ResponseSender::new(signature, self.version, recorder, senders, in_flight, &mut entry.request)
    }

    /// Takes back what [`Batch::response_sender`] gave: the end of the execution answers the request again.
    pub fn restore(&mut self, index: usize, sender: ResponseSender) {
        self.entries[index].request.responder = sender.into_responder();
    }

    /// Number of requests.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there is no request; never so in an execution.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Number of inferences in all requests together.
    pub fn size(&self) -> usize {
        self.entries.iter().map(|entry| entry.batch_size).sum()
    }

    /// Number of inferences in request `index`.
    pub fn request_size(&self, index: usize) -> usize {
        self.entries[index].batch_size
    }

    /// Whether shapes begin with a batch dimension.
    pub fn is_batched(&self) -> bool {
        self.signature.is_batched()
    }

    /// A request; its inputs have the shapes that the model sees.
    pub fn request(&self, index: usize) -> &Request {
        &self.entries[index].request
    }

    /// Whether request `index` wants the output `name`: for its client, or for its sequence.
    pub fn wants(&self, index: usize, name: &str) -> bool {
        self.client_wants(index, name) || self.state(name).is_some()
    }

    /// What the configuration does not have among the outputs is for no client.
    fn client_wants(&self, index: usize, name: &str) -> bool {
        let outputs = &self.entries[index].request.outputs;
        match outputs.is_empty() {
            true => self.signature.output(name).is_some(),
            false => outputs.iter().any(|output| output.name == name),
        }
    }

    /// The place among the states of the model of the one that the output `name` gives.
    fn state(&self, name: &str) -> Option<usize> {
        self.signature.sequence.as_ref()?.state(name)
    }

    /// Whether request `index` fills the row of a sequence that has no request now. It has inputs without meaning,
    /// and nobody hears of its outputs.
    pub fn is_stand_in(&self, index: usize) -> bool {
        self.entries[index].is_stand_in
    }

    /// Whether nobody waits for any of these requests any more.
    pub fn is_cancelled(&self) -> bool {
        let mut asked = self.entries.iter().filter(|entry| !entry.is_stand_in).peekable();
        asked.peek().is_some() && asked.all(|entry| entry.request.responder.is_cancelled())
    }

    /// Keeps a tensor for the next request of the sequence of request `index`, as if the output `name` had given it.
    ///
    /// # Errors
    /// The model has no such state.
    pub fn keep_state(&mut self, index: usize, name: &str, tensor: Gathered) -> Result<(), Error> {
        let model = &self.signature.model;
        let states = self.signature.sequence.as_ref().map_or(&[][..], |sequence| &sequence.states);
        if states.is_empty() {
            return Err(Error::invalid(format!(
                "unable to add state '{name}'. State configuration is missing for model '{model}'."
            )));
        }
        let Some(state) = self.state(name) else {
            return Err(Error::invalid(format!("state '{name}' is not a valid state name.")));
        };
        self.entries[index].keep(state, tensor);
        Ok(())
    }

    /// Lets request `index` run again after this execution, as the next of its sequence, instead of ending it.
    ///
    /// # Errors
    /// The model is not one of iterative sequences.
    pub fn run_again(&mut self, index: usize) -> Result<(), Error> {
        if !self.signature.sequence.as_ref().is_some_and(|sequence| sequence.is_iterative) {
            return Err(Error::invalid(
                "Request is released with TRITONSERVER_REQUEST_RELEASE_RESCHEDULE, while the model is not configured \
                 to handle such a flag.",
            ));
        }
        self.entries[index].runs_again = true;
        Ok(())
    }

    /// The execution begins at this time, not when the batch was made.
    pub(crate) fn begins(&mut self, at: Instant) {
        self.start = self.start.max(at);
        self.input_end = Some(self.start);
    }

    /// Its requests, as they came.
    pub(crate) fn into_entries(self) -> Vec<Entry> {
        self.entries
    }

    /// The requests.
    pub(crate) fn entries_mut(&mut self) -> &mut [Entry] {
        &mut self.entries
    }

    /// Whether any request wants the output `name`.
    pub fn any_wants(&self, name: &str) -> bool {
        (0..self.len()).any(|index| self.wants(index, name))
    }

    /// The inputs are gathered; what follows is the execution.
    pub fn inputs_ready(&mut self) {
        self.input_end = Some(Instant::now());
    }

    /// The model ran: the batch counts as an execution, even if all of its requests fail.
    pub fn executed(&mut self) {
        self.has_run = true;
    }

    /// The outputs are computed; what follows is their scattering.
    pub fn outputs_computed(&mut self) {
        self.output_start = Some(Instant::now());
    }

    /// Gives request `index` an output. One that is a state goes to the next request of the sequence, and to the
    /// client only where the configuration has it among the outputs.
    pub fn push_output(&mut self, index: usize, output: OutputTensor) {
        let state = self.state(&output.name);
        let is_wanted = self.client_wants(index, &output.name);
        let entry = &mut self.entries[index];
        if let Some(state) = state {
            let OutputTensor { dtype, shape, data, .. } = output.clone();
            entry.keep(state, Gathered { dtype, shape, data });
        }
        if is_wanted {
            entry.outputs.push(output);
        }
    }

    /// Adds a parameter to the response to request `index`.
    pub fn push_parameter(&mut self, index: usize, name: &str, value: Parameter) {
        self.entries[index].parameters.push((name.to_owned(), value));
    }

    /// Answers request `index` with an error.
    pub fn fail(&mut self, index: usize, error: Error) {
        self.entries[index].error = Some(error);
    }

    /// Answers all requests with an error.
    pub fn fail_all(&mut self, error: &Error) {
        for entry in &mut self.entries {
            entry.error = Some(error.clone());
        }
    }

    /// The first error of any request.
    pub(crate) fn first_error(&self) -> Option<&Error> {
        self.entries.iter().find_map(|entry| entry.error.as_ref())
    }

    /// Answers the requests and counts what happened. `send` takes each answer with its ticket.
    pub(crate) fn finish(self, mut send: impl FnMut(u64, Request, Response)) -> Finished {
        let end = Instant::now();
        let input_end = self.input_end.unwrap_or(self.start);
        let output_start = self.output_start.unwrap_or(end).max(input_end);
        let compute = ComputeTimes { start: self.start, input_end, output_start, end }.durations();
        if self.has_run || self.entries.iter().any(|entry| !entry.is_stand_in && entry.error.is_none()) {
            self.recorder.execution(self.size(), compute);
        }
        let Self { signature, version, recorder, entries, start: compute_start, .. } = self;
        let is_iterative = signature.sequence.as_ref().is_some_and(|sequence| sequence.is_iterative);
        let took = end.saturating_duration_since(compute_start);
        let mut finished = Finished { took, again: Vec::new(), ended: Vec::new() };
        for mut entry in entries.into_iter().filter(|entry| !entry.is_stand_in) {
            let (ticket, batch_size, start, queued) =
                (entry.ticket, entry.batch_size, entry.request.timestamps.start, entry.request.timestamps.queued);
            // Counted before the client hears of it, so that whoever asks next sees it.
            let succeed = |id: &str| {
                let end = Instant::now();
                recorder.success(&Success { id, batch_size, start, queued, compute_start, end, compute });
            };
            if let Some(total) = &entry.request.compute_total {
                total.add(compute);
            }
            if entry.runs_again && entry.error.is_none() {
                succeed(&entry.request.id);
                let Entry { request, ragged, in_flight, .. } = entry;
                finished.again.push(Entry { ragged, in_flight, ..Entry::new(request, batch_size) });
                continue;
            }
            let response = entry.response(&signature, version);
            if let Some(trace) = &entry.request.trace {
                trace.reach(&[
                    (Activity::ComputeStart, compute_start),
                    (Activity::ComputeInputEnd, input_end),
                    (Activity::ComputeOutputStart, output_start),
                    (Activity::ComputeEnd, end),
                ]);
            }
            match &response.error {
                None => succeed(&response.id),
                Some(_) => recorder.failure(FailureReason::Backend, start, Instant::now()),
            }
            if is_iterative {
                finished.ended.push((entry.request.sequence.id.clone(), entry.slot));
            }
            send(ticket, entry.request, response);
        }
        finished
    }
}

impl Entry {
    fn keep(&mut self, state: usize, tensor: Gathered) {
        let Gathered { dtype, shape, data } = tensor;
        self.states.push((state, InputTensor { name: String::new(), dtype: Some(dtype), shape, data }));
    }

    /// The response, with shapes as clients know them.
    fn response(&mut self, signature: &Signature, version: i64) -> Response {
        let outputs = std::mem::take(&mut self.outputs);
        let outputs = match self.error.take() {
            Some(error) => Err(error),
            None => outputs.into_iter().map(|output| client_output(output, signature, &self.request.outputs)).collect(),
        };
        let (outputs, error) = match outputs {
            Ok(outputs) => (outputs, None),
            Err(error) => (Vec::new(), Some(error)),
        };
        Response {
            model: std::mem::take(&mut self.request.model),
            version,
            id: std::mem::take(&mut self.request.id),
            parameters: std::mem::take(&mut self.parameters),
            outputs,
            error,
            is_refusal: false,
        }
    }
}

/// An output of a model as its client knows it.
pub(super) fn client_output(
    output: OutputTensor,
    signature: &Signature,
    wanted: &[RequestedOutput],
) -> Result<OutputTensor, Error> {
    let Some(spec) = signature.output(&output.name) else { return Ok(output) };
    let shape = spec.client_shape(output.shape, signature.is_batched());
    let output = OutputTensor { shape, ..output };
    match wanted.iter().find(|wanted| wanted.name == output.name) {
        Some(wanted) if wanted.classification > 0 => {
            crate::model::classify(output, spec, wanted.classification, signature.is_batched())
        }
        _ => Ok(output),
    }
}
