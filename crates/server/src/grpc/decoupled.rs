//! Responses of decoupled models on a stream: any number to a request, sent as they come.

use std::{sync::Arc, time::Instant};

use halimede_serving::{Reply, Responder, Response};
use tokio::sync::{OwnedSemaphorePermit, mpsc};
use tonic::Status;

use super::{
    from_error,
    infer::{self, Decoded, Outputs},
    proto::{ModelInferResponse, ModelStreamInferResponse},
    stream::{failed, mark_final},
};
use crate::{services::Services, traces::Record};

/// The way to the client, past the order of the requests.
#[derive(Debug, Clone)]
pub(super) struct Outgoing {
    /// Without bound, as what is sent there is made by models and not by clients.
    pub messages: mpsc::UnboundedSender<Result<ModelStreamInferResponse, Status>>,
    /// Whether an error of a model ends the call with its status.
    pub ends_on_error: bool,
}

/// Hands a request to the server; `version` is the model's as the client spells it.
pub(super) fn start(
    services: &Services,
    decoded: Decoded,
    version: String,
    room: OwnedSemaphorePermit,
    outgoing: Outgoing,
    record: Option<Arc<Record>>,
) {
    let Decoded { mut request, outputs, wants_end, .. } = decoded;
    let end = wants_end.then(|| ModelInferResponse {
        model_name: request.model.clone(),
        model_version: version,
        id: request.id.clone(),
        ..ModelInferResponse::default()
    });
    request.trace = record.as_ref().map(Record::trace);
    let answers = Answers { id: request.id.clone(), outputs, end, outgoing, record, has_answered: false, _room: room };
    request.responder = Responder::new(answers);
    services.infer(request);
}

/// The responses to one request.
struct Answers {
    id: String,
    outputs: Outputs,
    /// The message that says nothing but that it is the last, where the client wants it.
    end: Option<ModelInferResponse>,
    outgoing: Outgoing,
    record: Option<Arc<Record>>,
    /// Whether the model has answered, or has said that it will not.
    has_answered: bool,
    /// The request's part of what may wait.
    _room: OwnedSemaphorePermit,
}

impl Answers {
    fn message(&self, response: Response, last: bool) -> Result<ModelStreamInferResponse, Status> {
        let is_refusal = response.is_refusal;
        let error = match infer::encode(response, &self.outputs) {
            Ok(mut response) => {
                mark_final(&mut response, last);
                let error_message = String::new();
                return Ok(ModelStreamInferResponse { error_message, infer_response: Some(response) });
            }
            Err(error) => error,
        };
        if self.outgoing.ends_on_error && !is_refusal {
            return Err(from_error(error));
        }
        let mut message = failed(self.id.clone(), error.message);
        if !is_refusal {
            message.infer_response.iter_mut().for_each(|response| mark_final(response, last));
        }
        Ok(message)
    }

    fn hand_over(&self, message: Result<ModelStreamInferResponse, Status>) {
        // Without a receiver the client has gone.
        let _ = self.outgoing.messages.send(message);
    }

    fn mark(&self, name: &'static str) {
        if let Some(record) = &self.record {
            record.mark(name, Instant::now());
        }
    }

    /// The model answers: Triton tells the first time alone.
    fn mark_answer(&mut self) {
        if !std::mem::replace(&mut self.has_answered, true) {
            self.mark("INFER_RESPONSE_COMPLETE");
        }
    }
}

impl Reply for Answers {
    fn send(&mut self, response: Response, last: bool) {
        self.mark_answer();
        self.mark("GRPC_SEND_START");
        let message = self.message(response, last);
        self.mark("GRPC_SEND_END");
        self.hand_over(message);
    }

    fn end(&mut self) {
        self.mark_answer();
        if let Some(mut response) = self.end.take() {
            self.mark("GRPC_SEND_START");
            mark_final(&mut response, true);
            let error_message = String::new();
            self.mark("GRPC_SEND_END");
            self.hand_over(Ok(ModelStreamInferResponse { error_message, infer_response: Some(response) }));
        }
    }

    fn is_cancelled(&self) -> bool {
        self.outgoing.messages.is_closed()
    }
}
