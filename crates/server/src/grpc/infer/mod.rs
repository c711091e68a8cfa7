//! Inference: messages to requests, and responses to messages.

mod decode;
mod encode;

use std::{sync::Arc, time::Instant};

use halimede_serving::{Error, Response};
use tonic::{Status, metadata::MetadataMap};

pub(super) use self::decode::{CallKind, Decoded, Outputs};
pub(super) use self::encode::encode;
use super::{from_error, proto};
use crate::{
    answer::{self, Waiting},
    event_loops::aside,
    services::Services,
    traces::{Record, TraceHeaders},
};

/// Answers a call with one request.
pub(super) async fn answer(
    services: &Services,
    request: tonic::Request<proto::ModelInferRequest>,
) -> Result<proto::ModelInferResponse, Status> {
    let (metadata, _, message) = request.into_parts();
    let record = arrived(services, &metadata, &message);
    let decoded = decode(services, &metadata, message, CallKind::Single).map_err(from_error)?;
    start(services, decoded, record).finish().await.map_err(from_error)
}

/// The record of a request that is traced, and has just been read.
pub(super) fn arrived(
    services: &Services,
    metadata: &MetadataMap,
    message: &proto::ModelInferRequest,
) -> Option<Arc<Record>> {
    let record = services.tracing.sample(&message.model_name, metadata)?;
    // Reading is tonic's, and done.
    record.mark("GRPC_WAITREAD_START", Instant::now());
    record.mark("GRPC_WAITREAD_END", Instant::now());
    Some(record)
}

impl TraceHeaders for MetadataMap {
    fn texts(&self, name: &'static str) -> impl Iterator<Item = Option<&str>> {
        self.get_all(name).iter().map(|value| value.to_str().ok())
    }
}

/// A request that was handed to the server and is to be answered.
pub(super) struct Pending {
    waiting: Waiting,
    /// The response, where it was there as soon as the request was handed over.
    early: Option<Response>,
    outputs: Outputs,
    record: Option<Arc<Record>>,
}

/// The request of a message and of the headers that came with its call.
pub(super) fn decode(
    services: &Services,
    metadata: &MetadataMap,
    message: proto::ModelInferRequest,
    kind: CallKind,
) -> Result<Decoded, Error> {
    let mut decoded = aside(decode::is_long(&message), || decode::decode(services, message, kind))?;
    if let Some(pattern) = &services.grpc_forward_headers {
        decode::forward_headers(metadata, pattern, &mut decoded.request)?;
    }
    Ok(decoded)
}

/// Hands a request with one response to the server.
pub(super) fn start(services: &Services, decoded: Decoded, record: Option<Arc<Record>>) -> Pending {
    let Decoded { mut request, outputs, .. } = decoded;
    let (responder, mut waiting) = answer::channel();
    request.responder = responder;
    request.trace = record.as_ref().map(Record::trace);
    services.infer(request);
    let early = waiting.try_response();
    Pending { waiting, early, outputs, record }
}

impl Pending {
    /// Takes out what is wrong with the request itself.
    pub fn take_refusal(&mut self) -> Option<Error> {
        self.early.as_mut().filter(|early| early.is_refusal).and_then(|early| early.error.take())
    }

    /// Waits for the response.
    pub async fn finish(self) -> Result<proto::ModelInferResponse, Error> {
        let response = match self.early {
            Some(response) => response,
            None => self.waiting.response().await?,
        };
        let Some(record) = self.record else { return encode(response, &self.outputs) };
        record.mark("INFER_RESPONSE_COMPLETE", Instant::now());
        record.mark("GRPC_SEND_START", Instant::now());
        let message = encode(response, &self.outputs);
        record.mark("GRPC_SEND_END", Instant::now());
        message
    }
}
