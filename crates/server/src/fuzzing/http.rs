//! HTTP requests, written as they are on the wire but for the version.

use std::sync::Arc;

use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::{
    Request,
    header::{HeaderName, HeaderValue},
};

use crate::{http, services::Services};

/// Answers the request in `bytes`: `METHOD PATH`, header lines, an empty line, the body.
pub(super) async fn run(services: &Arc<Services>, bytes: &[u8]) -> bool {
    let Some(end) = bytes.windows(2).position(|two| two == b"\n\n") else { return false };
    let mut lines = bytes[..end].split(|byte| *byte == b'\n');
    let first = lines.next().unwrap_or_default();
    let Some(space) = first.iter().position(|byte| *byte == b' ') else { return false };
    let mut request = Request::builder().method(&first[..space]).uri(&first[space + 1..]);
    for line in lines {
        let Some(colon) = line.iter().position(|byte| *byte == b':') else { continue };
        if let (Ok(name), Ok(value)) =
            (HeaderName::from_bytes(&line[..colon]), HeaderValue::from_bytes(line[colon + 1..].trim_ascii()))
        {
            request = request.header(name, value);
        }
    }
    let Ok(request) = request.body(()) else { return false };
    let (parts, ()) = request.into_parts();
    let body = Bytes::copy_from_slice(&bytes[end + 2..]);
    let response = http::respond(services, &parts, body).await;
    let status = response.status();
    let is_json = response.headers().get("content-type").is_some_and(|value| value == "application/json");
    let Ok(body) = response.into_body().collect().await;
    let body = body.to_bytes();
    assert!(!status.is_server_error() || is_json || !body.is_empty(), "{status} without a word");
    status.is_success()
}
