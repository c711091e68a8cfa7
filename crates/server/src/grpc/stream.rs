//! ModelStreamInfer: many requests on one call. They run side by side; the responses keep the order of the
//! requests, but for those of decoupled models, which are sent as they come.

use std::sync::Arc;

use prost::Message;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio_stream::{
    Stream, StreamExt,
    wrappers::{ReceiverStream, UnboundedReceiverStream},
};
use tonic::{Request, Status, Streaming, metadata::MetadataMap};

use super::{
    decoupled::{self, Outgoing},
    from_error,
    infer::{self, CallKind, Decoded, Pending},
    proto::{
        InferParameter, ModelInferRequest, ModelInferResponse, ModelStreamInferResponse,
        infer_parameter::ParameterChoice,
    },
};
use crate::services::Services;

/// Requests of one call that may wait for their responses; the client is not read from beyond, and some tens of thousands later,
/// when as many small frames lie unread as h2 bears, its connection is ended.
const WAITING_MAX: usize = 1 << 16;

/// Bytes of requests of one call that may wait for their responses, in units of [`BYTES_UNIT`]: a client that does not
/// read what it is sent is not read from either, beyond these and [`WAITING_MAX`]. A larger request waits until it is the
/// only one. What responses hold is for admission to bound.
const UNITS_MAX: u32 = 128 << 10;

/// Bytes that are counted as one.
const BYTES_UNIT: usize = 1 << 10;

/// A request on its way, in the order of the call.
enum Step {
    Started {
        id: String,
        pending: Pending,
        /// Its part of what may wait.
        room: OwnedSemaphorePermit,
    },
    /// The request was wrong, and never ran.
    Refused { id: String, message: String },
    /// The request runs, and its responses go their own way.
    Decoupled,
    /// The call itself broke.
    Broken(Status),
}

/// The responses of a call. When it is dropped, because the client cancelled, the requests are too.
pub(super) fn answer(
    services: Arc<Services>,
    request: Request<Streaming<ModelInferRequest>>,
) -> impl Stream<Item = Result<ModelStreamInferResponse, Status>> + Send {
    let (metadata, _, requests) = request.into_parts();
    // With this header an error of a model ends the call with its status.
    let ends_on_error = metadata.get("triton_grpc_error").is_some_and(|value| value.as_bytes() == b"true");
    let (sender, steps) = mpsc::channel(WAITING_MAX);
    let (outgoing, responses) = mpsc::unbounded_channel();
    let outgoing = Outgoing { messages: outgoing, ends_on_error };
    tokio::spawn(read(services, metadata, requests, sender, outgoing));
    let ordered = ReceiverStream::new(steps).then(move |step| finish(step, ends_on_error)).filter_map(|step| step);
    ordered.merge(UnboundedReceiverStream::new(responses))
}

async fn read(
    services: Arc<Services>,
    metadata: MetadataMap,
    mut requests: Streaming<ModelInferRequest>,
    steps: mpsc::Sender<Step>,
    outgoing: Outgoing,
) {
    let rooms = Arc::new(Semaphore::new(UNITS_MAX as usize));
    loop {
        // Without a receiver the client has cancelled.
        let message = tokio::select! {
            message = requests.message() => message,
            () = steps.closed() => return,
        };
        let step = match message {
            Ok(Some(message)) => {
                let units = u32::try_from(message.encoded_len() / BYTES_UNIT).unwrap_or(UNITS_MAX).min(UNITS_MAX);
                let room = tokio::select! {
                    room = rooms.clone().acquire_many_owned(units) => room,
                    () = steps.closed() => return,
                };
                // Nobody closes it.
                let Ok(room) = room else { return };
                start(&services, &metadata, message, room, &outgoing)
            }
            Ok(None) => return,
            Err(status) => Step::Broken(status),
        };
        let is_broken = matches!(step, Step::Broken(_));
        if steps.send(step).await.is_err() || is_broken {
            return;
        }
    }
}

fn start(
    services: &Services,
    metadata: &MetadataMap,
    message: ModelInferRequest,
    room: OwnedSemaphorePermit,
    outgoing: &Outgoing,
) -> Step {
    let (id, version) = (message.id.clone(), message.model_version.clone());
    let record = infer::arrived(services, metadata, &message);
    match infer::decode(services, metadata, message, CallKind::Stream) {
        Err(error) => Step::Refused { id, message: error.message },
        Ok(decoded @ Decoded { is_decoupled: true, .. }) => {
            decoupled::start(services, decoded, version, room, outgoing.clone(), record);
            Step::Decoupled
        }
        Ok(decoded) => {
            let mut pending = infer::start(services, decoded, record);
            match pending.take_refusal() {
                Some(error) => Step::Refused { id, message: error.message },
                None => Step::Started { id, pending, room },
            }
        }
    }
}

async fn finish(step: Step, ends_on_error: bool) -> Option<Result<ModelStreamInferResponse, Status>> {
    Some(match step {
        Step::Decoupled => return None,
        Step::Broken(status) => Err(status),
        Step::Refused { id, message } => Ok(failed(id, message)),
        Step::Started { id, pending, room: _room } => match pending.finish().await {
            Ok(mut response) => {
                mark_final(&mut response, true);
                Ok(ModelStreamInferResponse { error_message: String::new(), infer_response: Some(response) })
            }
            Err(error) if ends_on_error => Err(from_error(error)),
            Err(error) => {
                let mut response = failed(id, error.message);
                response.infer_response.iter_mut().for_each(|response| mark_final(response, true));
                Ok(response)
            }
        },
    })
}

/// The message of a request that failed.
pub(super) fn failed(id: String, error_message: String) -> ModelStreamInferResponse {
    let response = ModelInferResponse { id, ..ModelInferResponse::default() };
    ModelStreamInferResponse { error_message, infer_response: Some(response) }
}

/// Says whether no other response to the request follows.
pub(super) fn mark_final(response: &mut ModelInferResponse, is_final: bool) {
    let value = InferParameter { parameter_choice: Some(ParameterChoice::BoolParam(is_final)) };
    response.parameters.insert("triton_final_response".to_owned(), value);
}
