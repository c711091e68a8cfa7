//! Replies: status, type and body.

use bytes::Bytes;
use halimede_serving::{Code, Error};
use hyper::{
    Response, StatusCode,
    header::{CONNECTION, CONTENT_TYPE, HeaderName, HeaderValue, RETRY_AFTER},
};

use super::Body;
use crate::json::Writer;

/// Type of a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ContentType {
    Text,
    Json,
    Binary,
    Metrics,
    /// Server-sent events.
    Events,
    Html,
    Css,
    Script,
}

impl ContentType {
    fn value(self) -> HeaderValue {
        HeaderValue::from_static(match self {
            ContentType::Text => "text/plain",
            ContentType::Json => "application/json",
            ContentType::Binary => "application/octet-stream",
            ContentType::Events => "text/event-stream; charset=utf-8",
            ContentType::Html => "text/html; charset=utf-8",
            ContentType::Css => "text/css; charset=utf-8",
            ContentType::Script => "text/javascript; charset=utf-8",
            ContentType::Metrics => "text/plain; charset=utf-8",
        })
    }
}

/// A reply that is about to be sent.
#[derive(Debug)]
pub(crate) struct Reply {
    response: Response<Body>,
}

impl Reply {
    fn new(status: u16, body: Body) -> Self {
        let mut response = Response::new(body);
        *response.status_mut() = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        response.headers_mut().insert(CONTENT_TYPE, ContentType::Text.value());
        Self { response }
    }

    /// Success with a body.
    pub fn ok(body: Vec<u8>) -> Self {
        Self::new(200, Body::from(Bytes::from(body)))
    }

    /// Success with a body in parts.
    pub fn parts(body: Body) -> Self {
        Self::new(200, body)
    }

    /// Success without a body.
    pub fn empty() -> Self {
        Self::bare(200)
    }

    /// A status without a body.
    pub fn bare(status: u16) -> Self {
        Self::new(status, Body::default())
    }

    /// A status with `{"error":message}`.
    pub fn failed(status: u16, message: &str) -> Self {
        Self::new(status, Body::from(error_body(message)))
    }

    /// A status with a body.
    pub fn with_status(status: u16, body: Body) -> Self {
        Self::new(status, body)
    }

    /// The status that belongs to an error.
    pub fn status_of(error: &Error) -> u16 {
        status(error.code)
    }

    /// An error with the status that belongs to its code.
    pub fn error(error: &Error) -> Self {
        Self::failed(status(error.code), &error.message).retried(error)
    }

    /// With the time after which the client should try again, where the error has one.
    pub fn retried(self, error: &Error) -> Self {
        match error.retry_after {
            // Whole seconds, and not too early.
            Some(time) => self.with(RETRY_AFTER, HeaderValue::from(time.as_millis().div_ceil(1000) as u64)),
            None => self,
        }
    }

    pub fn of_type(self, content_type: ContentType) -> Self {
        self.with(CONTENT_TYPE, content_type.value())
    }

    pub fn with(mut self, name: HeaderName, value: HeaderValue) -> Self {
        self.response.headers_mut().insert(name, value);
        self
    }

    pub fn into_response(self) -> Response<Body> {
        self.response
    }
}

/// The same response, and the end of the connection after it.
pub(super) fn closing(mut response: Response<Body>) -> Response<Body> {
    response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    response
}

/// `{"error":message}`
pub(super) fn error_body(message: &str) -> Bytes {
    let mut writer = Writer::with_capacity(message.len() + 16);
    writer.begin_object();
    writer.member("error", message);
    writer.end_object();
    Bytes::from(writer.into_bytes())
}

fn status(code: Code) -> u16 {
    match code {
        Code::Internal => 500,
        Code::NotFound => 404,
        Code::Unavailable => 503,
        Code::Unsupported => 501,
        Code::Unknown | Code::InvalidArgument | Code::AlreadyExists | Code::Cancelled => 400,
    }
}
