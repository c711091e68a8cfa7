//! The way back of a request that its model answers any number of times.

use std::{mem, sync::Arc, time::Instant};

use super::batch::{InFlight, client_output};
use crate::{
    error::{Code, Error},
    model::Signature,
    request::{Parameter, Request, RequestedOutput},
    response::{OutputTensor, Responder, Response},
    statistics::{Outcome, Recorder},
};

/// Answers one request of a batch any number of times, from any thread, also after the execution has ended.
/// Dropped before its last response, it answers with an error.
#[derive(Debug)]
pub struct ResponseSender {
    signature: Arc<Signature>,
    version: i64,
    recorder: Arc<Recorder>,
    model: String,
    id: String,
    wanted: Vec<RequestedOutput>,
    responder: Responder,
    /// Responses so far.
    count: u64,
    /// When the computation of the next response began.
    start: Instant,
    /// When its outputs were there.
    output_start: Option<Instant>,
    /// Keeps the instance, which may have something to say yet.
    _instance: Arc<()>,
    _in_flight: Arc<InFlight>,
}

impl ResponseSender {
    /// Takes the way back out of `request`.
    pub(super) fn new(
        signature: Arc<Signature>,
        version: i64,
        recorder: Arc<Recorder>,
        instance: Arc<()>,
        in_flight: Arc<InFlight>,
        request: &mut Request,
    ) -> Self {
        Self {
            signature,
            version,
            recorder,
            model: request.model.clone(),
            id: request.id.clone(),
            wanted: request.outputs.clone(),
            responder: mem::replace(&mut request.responder, Responder::closed()),
            count: 0,
            start: Instant::now(),
            output_start: None,
            _instance: instance,
            _in_flight: in_flight,
        }
    }

    /// The way back, for who answers the request from now on.
    pub(super) fn into_responder(mut self) -> Responder {
        mem::replace(&mut self.responder, Responder::closed())
    }

    /// Whether the client wants the output `name`.
    pub fn wants(&self, name: &str) -> bool {
        self.wanted.is_empty() || self.wanted.iter().any(|output| output.name == name)
    }

    /// Whether nobody waits for responses any more.
    pub fn is_cancelled(&self) -> bool {
        self.responder.is_cancelled()
    }

    /// Whether to send may take as long as others need to make room, as the steps of an ensemble behind this one do.
    pub fn may_wait(&self) -> bool {
        self.responder.may_wait()
    }

    /// Whether the last response was sent.
    pub fn is_answered(&self) -> bool {
        self.responder.is_answered()
    }

    /// The next response is computed; what follows is to give its outputs away.
    pub fn outputs_computed(&mut self) {
        self.output_start = Some(Instant::now());
    }

    /// Sends a response. `last` says that no other follows.
    pub fn send(&mut self, outputs: Vec<OutputTensor>, parameters: Vec<(String, Parameter)>, last: bool) {
        self.output_start.get_or_insert_with(Instant::now);
        let outputs: Result<_, _> =
            outputs.into_iter().map(|output| client_output(output, &self.signature, &self.wanted)).collect();
        match outputs {
            Err(error) => self.fail(error, last),
            Ok(outputs) => {
                self.count(Outcome::Success);
                let response = Response {
                    model: self.model.clone(),
                    version: self.version,
                    id: self.id.clone(),
                    parameters,
                    outputs,
                    error: None,
                    is_refusal: false,
                };
                self.responder.send(response, last);
            }
        }
    }

    /// Sends an error in place of a response.
    pub fn fail(&mut self, error: Error, last: bool) {
        self.count(if error.code == Code::Cancelled { Outcome::Cancel } else { Outcome::Fail });
        let response = Response::failed(self.model.clone(), self.version, self.id.clone(), error);
        self.responder.send(response, last);
    }

    /// Counts a response that is not sent, for the model has nothing to say.
    pub fn skip(&mut self) {
        self.count(Outcome::Empty);
    }

    /// Counts a response that is not sent, for the client has gone.
    pub fn skip_cancelled(&mut self) {
        self.count(Outcome::Cancel);
    }

    /// No response follows those that were sent; there may have been none.
    pub fn end(mut self) {
        self.responder.end();
    }

    fn count(&mut self, outcome: Outcome) {
        let now = Instant::now();
        let output_start = self.output_start.take().unwrap_or(now);
        if self.signature.is_decoupled && !self.responder.is_answered() {
            let infer = output_start.saturating_duration_since(self.start);
            let output = now.saturating_duration_since(output_start);
            self.recorder.response(self.count, outcome, infer, output);
        }
        self.count += 1;
        self.start = now;
    }
}

impl Drop for ResponseSender {
    fn drop(&mut self) {
        if !self.responder.is_answered() {
            self.fail(Error::internal("the model ended the request without a last response"), true);
        }
    }
}
