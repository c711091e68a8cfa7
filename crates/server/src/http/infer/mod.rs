//! Inference: a request's body to [`Request`], and its response to a body.

mod compression;
pub(super) mod data;
mod decode;
mod encode;

use std::{sync::Arc, time::Instant};

use bytes::Bytes;
use halimede_serving::{Error, Request, Response};
use hyper::{
    Response as HttpResponse,
    header::{ACCEPT_ENCODING, HeaderMap, HeaderValue},
    http::request::Parts,
};

use self::decode::Outputs;
pub(super) use self::decode::custom_parameter;
use super::{
    Body, ContentType, Reply,
    body::{self, Arriving},
    headers::{Encoding, INFERENCE_HEADER_LENGTH, accepted_encoding, content_encoding, inference_header_length},
    refused,
};
use crate::{
    answer,
    event_loops::{TEXT_BYTES_MAX, aside},
    services::{Services, model_version},
    traces::{Record, TraceHeaders},
};

/// Bytes that a loop decompresses itself: they may become a thousand times as many.
const PACKED_BYTES_MAX: usize = 1 << 10;

/// Answers a request for inference.
pub(super) async fn handle(
    services: &Arc<Services>,
    parts: &Parts,
    body: &mut Arriving,
    model: &str,
    version: &str,
) -> HttpResponse<Body> {
    let (headers, arrived) = (&parts.headers, Instant::now());
    // These errors come before the body is looked at, and have the type of a text.
    let version = match check(services, headers, model, version) {
        Ok(version) => version,
        Err(reply) => return reply.into_response(),
    };
    let body = match body.read(kind(headers), services.http_body_bytes_max).await {
        Ok(body) => body,
        Err(refusal) => return refused(refusal),
    };
    let Some(record) = services.tracing.sample(model, headers) else {
        return run(services, headers, body, model, version, None).await;
    };
    record.mark("HTTP_RECV_START", arrived);
    record.mark("HTTP_RECV_END", Instant::now());
    let response = run(services, headers, body, model, version, Some(&record)).await;
    sending(record, response)
}

/// What the headers say that the body is.
fn kind(headers: &HeaderMap) -> body::Kind {
    match headers.get(&INFERENCE_HEADER_LENGTH).map(HeaderValue::as_bytes) {
        None => body::Kind::Json,
        Some(b"0") => body::Kind::Raw,
        Some(_) => body::Kind::Mixed,
    }
}

impl TraceHeaders for HeaderMap {
    fn texts(&self, name: &'static str) -> impl Iterator<Item = Option<&str>> {
        self.get_all(name).iter().map(|value| value.to_str().ok())
    }
}

/// Marks when a response is sent.
pub(super) fn sending(record: Arc<Record>, response: HttpResponse<Body>) -> HttpResponse<Body> {
    record.mark("HTTP_SEND_START", Instant::now());
    response.map(|body| body.sent_then(move || record.mark("HTTP_SEND_END", Instant::now())))
}

/// Answers a request whose body is there already.
pub(super) async fn respond(
    services: &Arc<Services>,
    headers: &HeaderMap,
    body: Bytes,
    model: &str,
    version: &str,
) -> HttpResponse<Body> {
    match check(services, headers, model, version) {
        Ok(version) => run(services, headers, body, model, version, None).await,
        Err(reply) => reply.into_response(),
    }
}

async fn run(
    services: &Arc<Services>,
    headers: &HeaderMap,
    body: Bytes,
    model: &str,
    version: Option<i64>,
    record: Option<&Arc<Record>>,
) -> HttpResponse<Body> {
    let reply = match decompress(services, headers, body) {
        Ok((body, header_length)) => infer(services, headers, body, header_length, model, version, record).await,
        Err(error) => Err((error, ContentType::Text)),
    };
    match reply {
        Ok(reply) => reply.into_response(),
        Err((error, content_type)) => Reply::error(&error).of_type(content_type).into_response(),
    }
}

/// Whether the model is there and the request's compression is known.
fn check(services: &Services, headers: &HeaderMap, model: &str, version: &str) -> Result<Option<i64>, Reply> {
    let version = model_version(version)
        .and_then(|version| match services.server.is_decoupled(model, version)? {
            false => Ok(version),
            true => Err(Error::unsupported("HTTP end point doesn't support models with decoupled transaction policy")),
        })
        .map_err(|error| Reply::error(&error))?;
    content_encoding(headers)
        .map_err(|error| Reply::error(&error).with(ACCEPT_ENCODING, HeaderValue::from_static("gzip, deflate")))?;
    Ok(version)
}

/// The body as it was before compression, and how many bytes of it are JSON.
fn decompress(services: &Services, headers: &HeaderMap, body: Bytes) -> Result<(Bytes, usize), Error> {
    let body = match content_encoding(headers)? {
        Encoding::Identity => body,
        encoding => aside(body.len() > PACKED_BYTES_MAX, || {
            compression::decompress(encoding, &body, services.http_input_bytes_max)
        })?,
    };
    let header_length = inference_header_length(headers, body.len())?;
    Ok((body, header_length))
}

/// Makes the request, runs it and makes the reply. An error comes with the type of its reply: Triton sets
/// JSON for what is wrong with the request, and nothing for what goes wrong later.
async fn infer(
    services: &Arc<Services>,
    headers: &HeaderMap,
    body: Bytes,
    header_length: usize,
    model: &str,
    version: Option<i64>,
    record: Option<&Arc<Record>>,
) -> Result<Reply, (Error, ContentType)> {
    let (responder, waiting) = answer::channel();
    let mut request = Request::new(model, responder);
    request.version = version;
    let outputs = aside(header_length > TEXT_BYTES_MAX, || decode::decode(services, body, header_length, &mut request))
        .map_err(|error| (error, ContentType::Json))?;
    if let Some(pattern) = &services.http_forward_headers {
        decode::forward_headers(headers, pattern, &mut request).map_err(|error| (error, ContentType::Json))?;
    }
    request.trace = record.map(Record::trace);
    services.infer(request);
    let response = waiting.response().await.map_err(|error| (error, ContentType::Text))?;
    if let Some(record) = record {
        record.mark("INFER_RESPONSE_COMPLETE", Instant::now());
    }
    let error_type = if response.is_refusal { ContentType::Json } else { ContentType::Text };
    reply(headers, response, &outputs).map_err(|error| (error, error_type))
}

fn reply(headers: &HeaderMap, response: Response, outputs: &Outputs) -> Result<Reply, Error> {
    if let Some(error) = response.error {
        return Err(error);
    }
    let encoding = accepted_encoding(headers);
    let is_long = encode::is_long(&response, outputs, encoding);
    aside(is_long, || encode::into_reply(encode::encode(response, outputs)?, encoding))
}
