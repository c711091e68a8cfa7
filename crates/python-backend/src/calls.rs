//! Calls of a model to other models (Triton's business logic scripting).

use std::{
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    thread,
};

use halimede_serving::{
    CorrelationId, Error, InputTensor, LoadParameters, OutputTensor, Parameter, Reply, Request, RequestedOutput,
    Responder, Response, backend::Asker,
};
use serde_json::Value;

use crate::{
    process::{Shared, number_of, parameters},
    protocol::{Answer, CalledRequest, CalledResponse, IN_MESSAGE_BYTES_MAX, TensorEntry},
    tensors,
};

/// What names of files begin with, where a model that is to be loaded brings some.
const FILE_PREFIX: &str = "file:";

/// The request is the first of its sequence.
pub(crate) const FLAG_START: u32 = 1;
/// The request is the last of its sequence.
pub(crate) const FLAG_END: u32 = 2;

/// Hands the request of a call to another model. The answers go to the host.
///
/// # Errors
/// There is no such model, or it answers otherwise than the call expects.
pub(crate) fn infer(caller: &Arc<Shared>, call: u64, called: CalledRequest, decoupled: bool) -> Result<(), Error> {
    let model = called.model.clone();
    hand_over(caller, call, called, decoupled).map_err(|error| refused(&model, error))
}

/// The error of a request that no model took, as Triton's backend tells it.
fn refused(model: &str, error: Error) -> Error {
    Error::internal(format!("Model {model} - Error when running inference: {}", error.message))
}

fn hand_over(caller: &Arc<Shared>, call: u64, called: CalledRequest, decoupled: bool) -> Result<(), Error> {
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
    let is_cancelled = caller.begin_call(call);
    let answers = Answers { caller: Arc::downgrade(caller), call, is_cancelled, early: None, decoupled };
    let mut request = Request::new(model, Responder::new(answers));
    request.version = version;
    request.trace = called.trace.and_then(|origin| caller.trace(origin)).map(|origin| origin.child());
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

/// What a model wants to become of another.
pub(crate) enum Change {
    /// It is loaded, as a client loads it.
    Load(LoadParameters),
    /// It is unloaded, maybe with those that only it uses.
    Unload { dependents: bool },
}

/// Loads or unloads a model on a thread of its own, which answers the call.
pub(crate) fn change(caller: &Arc<Shared>, call: u64, model: String, change: Change) -> Result<(), Error> {
    let (peers, asker, is_serving) = (caller.peers.clone(), caller.model.clone(), caller.is_serving());
    let caller = Arc::downgrade(caller);
    let work = move || {
        let asker = if is_serving { Asker::RunningModel(&asker) } else { Asker::ChangingModel };
        let done = match change {
            Change::Load(parameters) => peers.load(&model, &parameters, asker),
            Change::Unload { dependents } => peers.unload(&model, dependents, asker),
        };
        let Some(caller) = caller.upgrade() else { return };
        caller.send(&Answer { call, error: done.err().map(|error| error.message), ..Answer::default() });
    };
    let thread = thread::Builder::new().name("python-change".to_owned()).spawn(work);
    thread.map(drop).map_err(|error| Error::internal(format!("cannot start a thread: {error}")))
}

/// What a call says about a model that is to be loaded.
pub(crate) fn load_parameters(
    caller: &Shared,
    config: String,
    files: Vec<TensorEntry>,
) -> Result<LoadParameters, Error> {
    let file = |tensor: OutputTensor| match tensor.name.strip_prefix(FILE_PREFIX) {
        Some(path) => Ok((path.to_owned(), tensor.data)),
        None => Err(Error::invalid(format!("Unrecognized load parameter '{}' with type 'BYTES'", tensor.name))),
    };
    let files = caller.tensors(files)?.into_iter().map(file).collect::<Result<_, Error>>()?;
    Ok(LoadParameters { config: (!config.is_empty()).then_some(config), files })
}

/// The way back of a call.
struct Answers {
    caller: Weak<Shared>,
    call: u64,
    /// Told by the caller, or by the end of its process.
    is_cancelled: Arc<AtomicBool>,
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
        // No lock of the caller: it may wait for one that is held by who asks, as where a model calls itself.
        self.is_cancelled.load(SeqCst) || self.caller.strong_count() == 0
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
        caller.send(&Answer { call: self.call, last: Some(last), response, ..Answer::default() });
    }
}

fn message(caller: &Shared, response: Response) -> Result<CalledResponse, Error> {
    if let Some(error) = response.error {
        return Err(if response.is_refusal { refused(&response.model, error) } else { error });
    }
    let parameters = parameters_text(&response.parameters);
    let size = tensors::bytes_of(response.outputs.iter().map(|output| &output.data));
    if size <= IN_MESSAGE_BYTES_MAX {
        let mut bytes = Vec::with_capacity(size);
        let outputs = response.outputs.iter().map(|output| tensors::append_output(output, &mut bytes)).collect();
        return Ok(CalledResponse { outputs, parameters, bytes, ..CalledResponse::default() });
    }
    let (segment, memory) = caller.input_segment(size)?;
    let mut place = 0;
    let outputs = response.outputs.iter().map(|output| tensors::write_output(output, &segment, &mut place));
    let outputs: Result<_, Error> = outputs.collect();
    Ok(CalledResponse {
        failure: None,
        outputs: outputs.inspect_err(|_| segment.release())?,
        parameters,
        memory,
        bytes: Vec::new(),
    })
}

/// Parameters as JSON, in their order, as Python reads and writes it: with numbers that are none.
pub(crate) fn parameters_text(parameters: &[(String, Parameter)]) -> String {
    let float = |number: f64| match (number.is_nan(), number.is_infinite()) {
        (true, _) => "NaN".to_owned(),
        (_, true) => format!("{}Infinity", if number < 0.0 { "-" } else { "" }),
        _ => Value::from(number).to_string(),
    };
    let member = |(name, parameter): &(String, Parameter)| {
        let value = match parameter {
            Parameter::String(text) => Value::from(text.as_str()).to_string(),
            Parameter::Int(number) => number.to_string(),
            Parameter::Bool(value) => value.to_string(),
            Parameter::Double(number) => float(*number),
        };
        format!("{}:{value}", Value::from(name.as_str()))
    };
    let members: Vec<String> = parameters.iter().map(member).collect();
    format!("{{{}}}", members.join(","))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_what_python_reads() {
        let parameters = [
            ("b".to_owned(), Parameter::Double(f64::NAN)),
            ("a".to_owned(), Parameter::Double(f64::NEG_INFINITY)),
            ("\"".to_owned(), Parameter::Double(0.1)),
            ("c".to_owned(), Parameter::String("\n".to_owned())),
            ("d".to_owned(), Parameter::Int(i64::MIN)),
            ("e".to_owned(), Parameter::Bool(true)),
        ];
        let text = r#"{"b":NaN,"a":-Infinity,"\"":0.1,"c":"\n","d":-9223372036854775808,"e":true}"#;
        assert_eq!(parameters_text(&parameters), text);
    }
}
