//! ModelStreamInfer: many requests on one call. They run side by side; the responses keep the order of the
//! requests.

use std::sync::Arc;

use prost::Message;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio_stream::{Stream, StreamExt, wrappers::ReceiverStream};
use tonic::{Request, Status, Streaming, metadata::MetadataMap};

use super::{
    from_error,
    infer::{self, Pending},
    proto::{
        InferParameter, ModelInferRequest, ModelInferResponse, ModelStreamInferResponse,
        infer_parameter::ParameterChoice,
    },
};
use crate::services::Services;

/// Requests of one call that may wait for their responses; the client is not read from beyond.
const WAITING_MAX: usize = 1024;

/// Bytes of requests of one call that may wait for their responses, in units of [`BYTES_UNIT`]: a client that does not
/// read what it is sent is not read from either. A larger request waits until it is the only one.
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
    tokio::spawn(read(services, metadata, requests, sender));
    ReceiverStream::new(steps).then(move |step| finish(step, ends_on_error))
}

async fn read(
    services: Arc<Services>,
    metadata: MetadataMap,
    mut requests: Streaming<ModelInferRequest>,
    steps: mpsc::Sender<Step>,
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
                start(&services, &metadata, message, room)
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

fn start(services: &Services, metadata: &MetadataMap, message: ModelInferRequest, room: OwnedSemaphorePermit) -> Step {
    let id = message.id.clone();
    match infer::start(services, metadata, message) {
        Err(error) => Step::Refused { id, message: error.message },
        Ok(mut pending) => match pending.take_refusal() {
            Some(error) => Step::Refused { id, message: error.message },
            None => Step::Started { id, pending, room },
        },
    }
}

async fn finish(step: Step, ends_on_error: bool) -> Result<ModelStreamInferResponse, Status> {
    match step {
        Step::Broken(status) => Err(status),
        Step::Refused { id, message } => Ok(failed(id, message)),
        Step::Started { id, pending, room: _room } => match pending.finish().await {
            Ok(mut response) => {
                mark_final(&mut response);
                Ok(ModelStreamInferResponse { error_message: String::new(), infer_response: Some(response) })
            }
            Err(error) if ends_on_error => Err(from_error(error)),
            Err(error) => {
                let mut response = failed(id, error.message);
                response.infer_response.iter_mut().for_each(mark_final);
                Ok(response)
            }
        },
    }
}

fn failed(id: String, error_message: String) -> ModelStreamInferResponse {
    let response = ModelInferResponse { id, ..ModelInferResponse::default() };
    ModelStreamInferResponse { error_message, infer_response: Some(response) }
}

/// Says that no other response to the request follows.
fn mark_final(response: &mut ModelInferResponse) {
    let value = InferParameter { parameter_choice: Some(ParameterChoice::BoolParam(true)) };
    response.parameters.insert("triton_final_response".to_owned(), value);
}
