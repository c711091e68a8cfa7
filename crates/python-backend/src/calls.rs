//! Calls of a model to other models (Triton's business logic scripting).

use std::sync::{Arc, Weak};

use halimede_serving::{
    CorrelationId, Error, InputTensor, Parameter, Reply, Request, RequestedOutput, Responder, Response,
};
use serde_json::{Map, Value};

use crate::{
    process::{Shared, number_of, parameters},
    protocol::{Answer, CalledRequest, CalledResponse},
    tensors,
};

/// The request is the first of its sequence.
pub(crate) const FLAG_START: u32 = 1;
/// The request is the last of its sequence.
pub(crate) const FLAG_END: u32 = 2;

/// Hands the request of a call to another model. The answers go to the host.
///
/// # Errors
/// There is no such model, or it answers otherwise than the call expects.
pub(crate) fn infer(caller: &Arc<Shared>, call: u64, called: CalledRequest, decoupled: bool) -> Result<(), Error> {
    // Read first, since that frees the memory.
    let inputs = caller.tensors(called.inputs)?;
    let version = (called.version >= 0).then_some(called.version);
    let model = called.model;
    let is_decoupled = caller.peers.is_decoupled(&model, version).map_err(|_| {
        Error::internal(format!("Failed for execute the inference request. Model '{model}' is not ready."))
    })?;
    if is_decoupled && !decoupled {
        return Err(Error::internal(format!(
            "Model {model} is using the decoupled. The current BLS request call doesn't support models using the \
             decoupled transaction policy. Please use 'decoupled=True' argument to the 'exec' or 'async_exec' calls for \
             decoupled models.'"
        )));
    }
    let parameters = parameters(&called.parameters)?;
    caller.begin_call(call);
    let answers = Answers { caller: Arc::downgrade(caller), call, early: None, decoupled };
    let mut request = Request::new(model, Responder::new(answers));
    request.version = version;
    request.id = called.id;
    request.sequence.id = match called.correlation_id {
        Value::String(id) => CorrelationId::String(id),
        id => CorrelationId::Int(id.as_u64().unwrap_or(0)),
    };
    request.sequence.start = called.flags & FLAG_START != 0;
    request.sequence.end = called.flags & FLAG_END != 0;
    request.timeout_us = called.timeout;
    request.parameters = parameters;
    request.outputs = called.outputs.into_iter().map(|name| RequestedOutput { name, classification: 0 }).collect();
    request.inputs = inputs
        .into_iter()
        .map(|tensor| InputTensor {
            name: tensor.name,
            dtype: Some(tensor.dtype),
            shape: tensor.shape,
            data: tensor.data,
        })
        .collect();
    caller.peers.infer(request);
    Ok(())
}

/// The way back of a call.
struct Answers {
    caller: Weak<Shared>,
    call: u64,
    /// The one response of a model that answers once, where it did not say that it is the last.
    early: Option<Response>,
    decoupled: bool,
}

impl Reply for Answers {
    fn send(&mut self, response: Response, last: bool) {
        match self.decoupled || last {
            true => self.answer(Some(response), last),
            false => self.early = Some(response),
        }
    }

    fn end(&mut self) {
        let early = self.early.take();
        self.answer(early, true);
    }

    fn is_cancelled(&self) -> bool {
        self.caller.upgrade().is_none_or(|caller| caller.is_call_cancelled(self.call))
    }
}

impl Answers {
    fn answer(&self, response: Option<Response>, last: bool) {
        let Some(caller) = self.caller.upgrade() else { return };
        let response = response.map(|response| {
            message(&caller, response).unwrap_or_else(|error| CalledResponse {
                failure: Some((number_of(error.code), error.message)),
                ..CalledResponse::default()
            })
        });
        if last {
            caller.end_call(self.call);
        }
        // A process that has ended needs no answer.
        let _ = caller.send(&Answer { call: self.call, last: Some(last), response, ..Answer::default() });
    }
}

fn message(caller: &Shared, response: Response) -> Result<CalledResponse, Error> {
    if let Some(error) = response.error {
        return Err(error);
    }
    let bytes = tensors::bytes_of(response.outputs.iter().map(|output| &output.data));
    let (segment, memory) = caller.input_segment(bytes)?;
    let mut place = 0;
    let outputs = response.outputs.iter().map(|output| tensors::write_output(output, &segment, &mut place));
    let outputs: Result<_, Error> = outputs.collect();
    Ok(CalledResponse {
        failure: None,
        outputs: outputs.inspect_err(|_| segment.release())?,
        parameters: parameters_text(&response.parameters),
        memory,
    })
}

/// Parameters as JSON. A number that is none becomes null.
pub(crate) fn parameters_text(parameters: &[(String, Parameter)]) -> String {
    let value = |value: &Parameter| match value {
        Parameter::String(text) => Value::from(text.as_str()),
        Parameter::Int(number) => Value::from(*number),
        Parameter::Bool(value) => Value::from(*value),
        Parameter::Double(number) => Value::from(*number),
    };
    let all: Map<String, Value> = parameters.iter().map(|(name, parameter)| (name.clone(), value(parameter))).collect();
    Value::Object(all).to_string()
}
