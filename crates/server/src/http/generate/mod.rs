//! The generate extension: JSON whose members are tensors and parameters by name, answered in kind, once
//! (`generate`) or as server-sent events (`generate_stream`).

mod decode;
mod encode;

use std::{sync::Arc, time::Instant};

use bytes::Bytes;
use halimede_serving::{Error, Reply as ReplyTo, Request, Responder, Response};
use hyper::{Response as HttpResponse, header::HeaderMap};
use tokio::sync::{mpsc, oneshot};

use super::{
    Body, ContentType, Reply,
    headers::{Encoding, content_encoding},
    infer::sending,
    reply::error_body,
};
use crate::{
    event_loops::{TEXT_BYTES_MAX, aside},
    services::{Services, model_version},
    traces::Record,
};

/// How a request is answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mode {
    /// By the one response of the model.
    Once,
    /// By an event for each response.
    Stream,
}

/// Answers a request whose body is there.
pub(super) async fn respond(
    services: &Arc<Services>,
    headers: &HeaderMap,
    body: Bytes,
    model: &str,
    version: &str,
    mode: Mode,
) -> HttpResponse<Body> {
    let record = services.tracing.sample(model, headers);
    if let Some(record) = &record {
        // The body was read before it was known what it asks for.
        record.mark("HTTP_RECV_START", Instant::now());
        record.mark("HTTP_RECV_END", Instant::now());
    }
    let answered = match start(services, headers, &body, model, version, mode, record.as_ref()) {
        Ok(answers) => answer(answers, mode).await,
        Err(error) => Answered::Whole(failed(&error)),
    };
    match (answered, record) {
        (Answered::Whole(response) | Answered::Events(response), None) => response,
        (Answered::Whole(response), Some(record)) => sending(record, response),
        (Answered::Events(response), Some(record)) => response.map(|body| body.traced(record)),
    }
}

/// A reply, which is sent as a whole or event by event.
enum Answered {
    Whole(HttpResponse<Body>),
    Events(HttpResponse<Body>),
}

async fn answer(answers: Answers, mode: Mode) -> Answered {
    let Answers { first, mut frames } = answers;
    // What the first response is decides the status; a model that ends without one has not failed.
    let status = match first.await.unwrap_or(First::Response) {
        First::Refusal(error) => return Answered::Whole(failed(&error)),
        First::Failure(error) => Reply::status_of(&error),
        First::Response => 200,
    };
    if mode == Mode::Stream {
        let reply = Reply::with_status(status, Body::stream(frames)).of_type(ContentType::Events);
        return Answered::Events(reply.into_response());
    }
    let only = frames.recv().await;
    let body = match (only, frames.recv().await) {
        (Some(only), None) => only,
        // The others are not of interest: the model is told so where it asks.
        _ => error_body(
            "generate expects model to produce exactly 1 response, use generate stream for model that generates various \
             number of responses",
        ),
    };
    Answered::Whole(Reply::with_status(status, Body::from(body)).of_type(ContentType::Json).into_response())
}

fn failed(error: &Error) -> HttpResponse<Body> {
    Reply::error(error).of_type(ContentType::Json).into_response()
}

fn start(
    services: &Services,
    headers: &HeaderMap,
    body: &[u8],
    model: &str,
    version: &str,
    mode: Mode,
    record: Option<&Arc<Record>>,
) -> Result<Answers, Error> {
    let version = model_version(version)?;
    let metadata = services.server.model_metadata(model, version)?;
    if content_encoding(headers) != Ok(Encoding::Identity) {
        return Err(Error::invalid("Unsupported content-encoding, only 'identity' is supported."));
    }
    let (frames, received) = mpsc::unbounded_channel();
    let (first, decides) = oneshot::channel();
    let mut request = Request::new(model, Responder::closed());
    request.version = version;
    aside(body.len() > TEXT_BYTES_MAX, || {
        decode::decode(body, &metadata.inputs, services.http_input_bytes_max, &mut request)
    })?;
    request.responder = Responder::new(Sending { mode, first: Some(first), frames, record: record.cloned() });
    request.trace = record.map(Record::trace);
    services.infer(request);
    Ok(Answers { first: decides, frames: received })
}

/// Where the responses of a model arrive. Dropping it cancels the request.
struct Answers {
    first: oneshot::Receiver<First>,
    /// Each response as it is sent.
    frames: mpsc::UnboundedReceiver<Bytes>,
}

/// What the first response is.
enum First {
    Response,
    /// An error of the model.
    Failure(Error),
    /// The request never ran.
    Refusal(Error),
}

struct Sending {
    mode: Mode,
    first: Option<oneshot::Sender<First>>,
    frames: mpsc::UnboundedSender<Bytes>,
    record: Option<Arc<Record>>,
}

impl ReplyTo for Sending {
    fn send(&mut self, response: Response, _last: bool) {
        self.mark_answer();
        let is_refusal = response.is_refusal;
        let (json, first) = match encode::encode(response) {
            Ok(json) => (Bytes::from(json), First::Response),
            Err(error) if is_refusal => (Bytes::new(), First::Refusal(error)),
            Err(error) => (error_body(&error.message), First::Failure(error)),
        };
        let frame = match self.mode {
            Mode::Once => json,
            Mode::Stream => Bytes::from([b"data: ", &json[..], b"\n\n"].concat()),
        };
        // Without a receiver the client has gone.
        let _ = self.frames.send(frame);
        self.decide(first);
    }

    fn end(&mut self) {
        self.mark_answer();
        self.decide(First::Response);
    }

    fn is_cancelled(&self) -> bool {
        self.frames.is_closed()
    }
}

impl Sending {
    /// The model answers, or says that it has done so.
    fn mark_answer(&self) {
        if let Some(record) = &self.record {
            record.mark("INFER_RESPONSE_COMPLETE", Instant::now());
        }
    }

    fn decide(&mut self, first: First) {
        if let Some(sender) = self.first.take() {
            // As above.
            let _ = sender.send(first);
        }
    }
}
