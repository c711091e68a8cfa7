//! One inference request, the same for every protocol.

use std::{sync::Arc, time::Instant};

use halimede_tensor::{Buffer, DType};

use crate::{
    error::Error,
    response::{Responder, Response},
    statistics::ComputeTotal,
    trace::Trace,
};

/// A request for one inference. It is moved from the protocol to the instance that answers it and
/// never shared; the answer goes through [`Request::responder`].
#[derive(Debug)]
pub struct Request {
    /// The client's identifier, returned with every response. Empty: none.
    pub id: String,
    /// Name of the model.
    pub model: String,
    /// Version of the model; `None` asks for the newest that is ready.
    pub version: Option<i64>,
    /// Input tensors in the order of the request.
    pub inputs: Vec<InputTensor>,
    /// The outputs to return; empty asks for all. A name may come twice and is returned once.
    pub outputs: Vec<RequestedOutput>,
    /// Whether the request is one unnamed block of bytes for a model with a single input: `inputs` then
    /// holds one tensor, made by [`InputTensor::raw`].
    pub raw: bool,
    /// Parameters of the request that the protocols do not define, in order.
    pub parameters: Vec<(String, Parameter)>,
    /// Priority level, 1 is the most urgent; 0 asks for the model's default.
    pub priority: u64,
    /// How long the request may wait in the queue, in microseconds; 0 asks for the model's default.
    pub timeout_us: u64,
    /// The sequence that the request belongs to.
    pub sequence: Sequence,
    /// Where responses go.
    pub responder: Responder,
    /// When the request passed which point.
    pub timestamps: Timestamps,
    /// Where the ensemble that makes this request adds up what its steps spend.
    pub(crate) compute_total: Option<Arc<ComputeTotal>>,
    /// What follows the request on its way. Last, since it ends after everything else of the request.
    pub trace: Option<Trace>,
}

impl Request {
    /// A request for the newest version of `model` without inputs, which asks for all outputs.
    pub fn new(model: impl Into<String>, responder: Responder) -> Self {
        Self {
            id: String::new(),
            model: model.into(),
            version: None,
            inputs: Vec::new(),
            outputs: Vec::new(),
            raw: false,
            parameters: Vec::new(),
            priority: 0,
            timeout_us: 0,
            sequence: Sequence::default(),
            responder,
            timestamps: Timestamps::default(),
            compute_total: None,
            trace: None,
        }
    }

    /// What Triton puts in front of messages about a request.
    pub(crate) fn log_prefix(&self) -> String {
        let id = if self.id.is_empty() { "<id_unknown>" } else { &self.id };
        format!("[request id: {id}] ")
    }

    /// Answers the request with an error, as version `version` of its model; 0 where that is not known.
    pub(crate) fn fail(mut self, version: i64, error: Error) {
        let response = Response::failed(self.model, version, self.id, error);
        self.responder.send(response, true);
    }

    /// The same for a request that no queue took.
    pub(crate) fn refuse(mut self, version: i64, error: Error) {
        let failed = Response::failed(self.model, version, self.id, error);
        self.responder.send(Response { is_refusal: true, ..failed }, true);
    }

    /// The value of the parameter `name`.
    pub fn parameter(&self, name: &str) -> Option<&Parameter> {
        self.parameters.iter().find(|(key, _)| key == name).map(|(_, value)| value)
    }
}

/// One input of a request.
#[derive(Debug, Clone)]
pub struct InputTensor {
    /// Name of the input.
    pub name: String,
    /// Element type; `None` where the request names one that the protocol does not have.
    pub dtype: Option<DType>,
    /// Dimensions with the batch dimension, outermost first.
    pub shape: Vec<i64>,
    /// The elements in the wire form of [`crate::wire`]: a view of the request body, of a shared memory
    /// region, or bytes converted from JSON.
    pub data: Buffer,
}

impl InputTensor {
    /// The input of a request that is nothing but bytes; name, datatype and shape come from the model.
    pub fn raw(data: Buffer) -> Self {
        Self { name: "raw_input".to_owned(), dtype: None, shape: Vec::new(), data }
    }
}

/// An output that the client asks for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RequestedOutput {
    /// Name of the output.
    pub name: String,
    /// Above 0: return the top so many classes as strings `value:index[:label]` instead of the tensor.
    pub classification: u32,
}

impl From<&str> for RequestedOutput {
    fn from(name: &str) -> Self {
        Self { name: name.to_owned(), classification: 0 }
    }
}

/// A parameter of a request or of a response.
#[derive(Debug, Clone, PartialEq)]
pub enum Parameter {
    /// Text.
    String(String),
    /// A whole number.
    Int(i64),
    /// True or false.
    Bool(bool),
    /// A number.
    Double(f64),
}

/// The sequence that a request belongs to.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Sequence {
    /// Which sequence.
    pub id: CorrelationId,
    /// Whether this request is the first.
    pub start: bool,
    /// Whether this request is the last.
    pub end: bool,
}

/// Identifier of a sequence.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum CorrelationId {
    /// A number; 0 says that the request belongs to no sequence.
    Int(u64),
    /// A text; empty says that the request belongs to no sequence.
    String(String),
}

impl CorrelationId {
    /// Whether it names a sequence.
    pub fn is_some(&self) -> bool {
        match self {
            CorrelationId::Int(id) => *id != 0,
            CorrelationId::String(id) => !id.is_empty(),
        }
    }
}

impl Default for CorrelationId {
    fn default() -> Self {
        CorrelationId::Int(0)
    }
}

/// When a request passed which point of its way. `start` is set by the constructor, the others by the
/// scheduler and the instance.
#[derive(Debug, Clone, Copy)]
pub struct Timestamps {
    /// The request was decoded.
    pub start: Instant,
    /// The request entered the queue.
    pub queued: Instant,
}

impl Default for Timestamps {
    fn default() -> Self {
        let now = Instant::now();
        Self { start: now, queued: now }
    }
}
