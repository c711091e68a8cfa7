//! Inference: messages to requests, and responses to messages.

mod decode;
mod encode;

use halimede_serving::{Error, Request, Response};
use tonic::{Status, metadata::MetadataMap};

pub(super) use self::decode::Decoded;
pub(super) use self::encode::encode;
use super::{from_error, proto};
use crate::{
    answer::{self, Waiting},
    services::Services,
};

/// Answers a call with one request.
pub(super) async fn answer(
    services: &Services,
    request: tonic::Request<proto::ModelInferRequest>,
) -> Result<proto::ModelInferResponse, Status> {
    let (metadata, _, message) = request.into_parts();
    let pending = start(services, &metadata, message).map_err(from_error)?;
    pending.finish().await.map_err(from_error)
}

/// A request that was handed to the server and is to be answered.
pub(super) struct Pending {
    waiting: Waiting,
    /// The response, where it was there as soon as the request was handed over.
    early: Option<Response>,
    outputs: decode::Outputs,
}

/// Decodes a message and hands the request to the server.
pub(super) fn start(
    services: &Services,
    metadata: &MetadataMap,
    message: proto::ModelInferRequest,
) -> Result<Pending, Error> {
    let (responder, mut waiting) = answer::channel();
    let request = Request::new(String::new(), responder);
    let Decoded { mut request, outputs } = decode::decode(services, message, request)?;
    if let Some(pattern) = &services.grpc_forward_headers {
        decode::forward_headers(metadata, pattern, &mut request)?;
    }
    services.server.infer(request);
    let early = waiting.try_response();
    Ok(Pending { waiting, early, outputs })
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
        encode(response, &self.outputs)
    }
}
