//! Requests that run together: their inputs gathered, their outputs scattered.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use halimede_tensor::{Buffer, DType};

use super::sender::ResponseSender;
use crate::{
    error::Error,
    model::Signature,
    request::{Parameter, Request, RequestedOutput},
    response::{OutputTensor, Response},
    statistics::{ComputeTimes, FailureReason, Recorder},
    wire,
};

/// The requests of one execution.
#[derive(Debug)]
pub struct Batch {
    signature: Arc<Signature>,
    version: i64,
    recorder: Arc<Recorder>,
    entries: Vec<Entry>,
    start: Instant,
    input_end: Option<Instant>,
    output_start: Option<Instant>,
}

/// A request of a batch and what becomes its response.
#[derive(Debug)]
pub(crate) struct Entry {
    pub request: Request,
    /// Inferences in the request, at least 1.
    pub batch_size: usize,
    /// Its place where responses keep the order of requests.
    pub ticket: u64,
    outputs: Vec<OutputTensor>,
    parameters: Vec<(String, Parameter)>,
    error: Option<Error>,
}

impl Entry {
    pub fn new(request: Request, batch_size: usize) -> Self {
        Self { request, batch_size, ticket: 0, outputs: Vec::new(), parameters: Vec::new(), error: None }
    }
}

/// An input of all requests of a batch.
#[derive(Debug, Clone)]
pub struct Gathered {
    /// Element type.
    pub dtype: DType,
    /// Dimensions, those of the requests added up along the batch dimension.
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
        Self { signature, version, recorder, entries, start: Instant::now(), input_end: None, output_start: None }
    }

    /// What answers request `index` from now on, any number of times, also after the execution. The end of the
    /// execution counts the request, as a failure after [`Batch::fail`], and does not answer it.
    pub fn response_sender(&mut self, index: usize) -> ResponseSender {
        let request = &mut self.entries[index].request;
        ResponseSender::new(self.signature.clone(), self.version, self.recorder.clone(), request)
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

    /// Whether request `index` wants the output `name`.
    pub fn wants(&self, index: usize, name: &str) -> bool {
        let outputs = &self.entries[index].request.outputs;
        outputs.is_empty() || outputs.iter().any(|output| output.name == name)
    }

    /// Whether nobody waits for any of these requests any more.
    pub fn is_cancelled(&self) -> bool {
        !self.entries.is_empty() && self.entries.iter().all(|entry| entry.request.responder.is_cancelled())
    }

    /// Whether any request wants the output `name`.
    pub fn any_wants(&self, name: &str) -> bool {
        (0..self.len()).any(|index| self.wants(index, name))
    }

    /// The input `name` of all requests, one after the other along the batch dimension. `None` where the
    /// input is optional and not given; all requests of a batch give the same inputs in the same shapes.
    pub fn gather(&self, name: &str) -> Result<Option<Gathered>, Error> {
        let Some(Gathered { dtype, mut shape, data }) = self.gather_one(0, name)? else { return Ok(None) };
        if self.entries.len() == 1 {
            return Ok(Some(Gathered { dtype, shape, data }));
        }
        let tensors =
            self.entries.iter().filter_map(|entry| entry.request.inputs.iter().find(|input| input.name == name));
        let parts: Vec<&Buffer> = tensors.map(|tensor| &tensor.data).collect();
        if let Some(batch) = shape.first_mut() {
            *batch = self.size() as i64;
        }
        let mut data = Buffer::zeroed(parts.iter().map(|part| part.len()).sum())?;
        let mut rest = data.make_mut()?;
        for part in parts {
            let (head, tail) = rest.split_at_mut(part.len());
            head.copy_from_slice(part);
            rest = tail;
        }
        Ok(Some(Gathered { dtype, shape, data }))
    }

    /// The input `name` of request `index` alone.
    pub fn gather_one(&self, index: usize, name: &str) -> Result<Option<Gathered>, Error> {
        let mut inputs = self.entries[index].request.inputs.iter();
        let Some(input) = inputs.find(|input| input.name == name) else { return Ok(None) };
        let dtype = input.dtype.ok_or_else(|| Error::internal(format!("input '{name}' has no datatype")))?;
        Ok(Some(Gathered { dtype, shape: input.shape.clone(), data: input.data.clone() }))
    }

    /// The inputs are gathered; what follows is the execution.
    pub fn inputs_ready(&mut self) {
        self.input_end = Some(Instant::now());
    }

    /// The outputs are computed; what follows is their scattering.
    pub fn outputs_computed(&mut self) {
        self.output_start = Some(Instant::now());
    }

    /// Gives each request that wants the output `name` its part of it, in order along the batch dimension.
    /// The parts share `data`.
    ///
    /// # Errors
    /// The output does not have one row per inference.
    pub fn scatter(&mut self, name: &str, dtype: DType, shape: &[i64], data: Buffer) -> Result<(), Error> {
        if self.entries.len() == 1 {
            if self.wants(0, name) {
                let output = OutputTensor { name: name.to_owned(), dtype, shape: shape.to_vec(), data };
                self.entries[0].outputs.push(output);
            }
            return Ok(());
        }
        let rows = self.size();
        if shape.first() != Some(&(rows as i64)) {
            let shape = crate::model::shape_text(shape);
            return Err(Error::internal(format!(
                "model '{}' gave output '{name}' of shape {shape} for a batch of {rows}; its first dimension must be \
                 the batch",
                self.signature.model
            )));
        }
        let sizes: Vec<usize> = self.entries.iter().map(|entry| entry.batch_size).collect();
        let bytes = part_bytes(dtype, shape, &data, &sizes)?;
        let mut offset = 0;
        for (index, bytes) in bytes.into_iter().enumerate() {
            if self.wants(index, name) {
                let part = data
                    .part(offset, bytes)
                    .ok_or_else(|| Error::internal(format!("output '{name}' is shorter than its shape")))?;
                let mut shape = shape.to_vec();
                shape[0] = sizes[index] as i64;
                self.entries[index].outputs.push(OutputTensor { name: name.to_owned(), dtype, shape, data: part });
            }
            offset += bytes;
        }
        Ok(())
    }

    /// Gives request `index` an output.
    pub fn push_output(&mut self, index: usize, output: OutputTensor) {
        self.entries[index].outputs.push(output);
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

    /// Answers the requests and counts what happened. `send` takes each answer with its ticket. Returns how
    /// long the execution took.
    pub(crate) fn finish(self, mut send: impl FnMut(u64, Request, Response)) -> Duration {
        let end = Instant::now();
        let input_end = self.input_end.unwrap_or(self.start);
        let output_start = self.output_start.unwrap_or(end).max(input_end);
        let compute = ComputeTimes { start: self.start, input_end, output_start, end }.durations();
        if self.entries.iter().any(|entry| entry.error.is_none()) {
            self.recorder.execution(self.size(), compute);
        }
        let Self { signature, version, recorder, entries, start: compute_start, .. } = self;
        for mut entry in entries {
            let (ticket, batch_size, start, queued) =
                (entry.ticket, entry.batch_size, entry.request.timestamps.start, entry.request.timestamps.queued);
            let response = entry.response(&signature, version);
            // Counted before the client hears of it, so that whoever asks next sees it.
            match &response.error {
                None => recorder.success(batch_size, start, queued, compute_start, Instant::now(), compute),
                Some(_) => recorder.failure(FailureReason::Backend, start, Instant::now()),
            }
            if let Some(total) = &entry.request.compute_total {
                *total.lock() += compute;
            }
            send(ticket, entry.request, response);
        }
        end.saturating_duration_since(compute_start)
    }
}

impl Entry {
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

/// Bytes of each request's rows; the rows of strings differ in length.
fn part_bytes(dtype: DType, shape: &[i64], data: &[u8], sizes: &[usize]) -> Result<Vec<usize>, Error> {
    let row_len: usize = shape[1..].iter().map(|dim| usize::try_from(*dim).unwrap_or(0)).product();
    if dtype != DType::String {
        return Ok(sizes.iter().map(|size| size * row_len * dtype.size()).collect());
    }
    let mut strings = wire::strings(data);
    let cut = |_| Error::internal("a string of an output is cut off");
    sizes
        .iter()
        .map(|size| {
            let part = strings.by_ref().take(size * row_len);
            part.map(|string| string.map_err(cut).map(|string| wire::LENGTH_BYTES + string.len())).sum()
        })
        .collect()
}
