//! One message to a collector: a connection each, since there are few.

use bytes::{BufMut, Bytes, BytesMut};
use http_body_util::{BodyExt, Full};
use hyper::{
    Method, Request, Response,
    body::Incoming,
    client::conn::{http1, http2},
    header::{CONTENT_TYPE, HOST, HeaderMap, TE},
};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpStream;

use super::{Collector, Protocol};
use crate::percent;

/// Where the service of gRPC is.
const EXPORT: &str = "/opentelemetry.proto.collector.trace.v1.TraceService/Export";

/// Characters of what a collector says of an error that are told.
const REASON_CHARS_MAX: usize = 256;

/// Sends a message, and says why it was not taken.
pub(super) async fn post(collector: &Collector, message: Vec<u8>) -> Result<(), String> {
    let url = &collector.url;
    let host = url.host().ok_or("its address has no host")?;
    let port = url.port_u16().unwrap_or(80);
    let stream = TcpStream::connect((host.trim_matches(['[', ']']), port)).await.map_err(|error| error.to_string())?;
    let io = TokioIo::new(stream);
    let failed = |error: hyper::Error| error.to_string();
    match collector.protocol {
        Protocol::Http => {
            let (mut sender, connection) = http1::handshake(io).await.map_err(failed)?;
            let connection = tokio::spawn(connection);
            let path = url.path_and_query().map_or("/", |path| path.as_str());
            let mut request = Request::builder()
                .method(Method::POST)
                .uri(path)
                .header(HOST, format!("{host}:{port}"))
                .header(CONTENT_TYPE, "application/x-protobuf")
                .body(Full::new(Bytes::from(message)))
                .map_err(|error| error.to_string())?;
            request.headers_mut().extend(collector.headers.clone());
            let response = sender.send_request(request).await.map_err(failed)?;
            connection.abort();
            accepted(&response)
        }
        Protocol::Grpc => {
            let (mut sender, connection) = http2::handshake(TokioExecutor::new(), io).await.map_err(failed)?;
            let connection = tokio::spawn(connection);
            // Not compressed, and its length.
            let mut frame = BytesMut::with_capacity(message.len() + 5);
            frame.put_u8(0);
            frame.put_u32(u32::try_from(message.len()).map_err(|_| "the message is too long")?);
            frame.put_slice(&message);
            let mut request = Request::builder()
                .method(Method::POST)
                .uri(format!("http://{host}:{port}{EXPORT}"))
                .header(CONTENT_TYPE, "application/grpc")
                .header(TE, "trailers")
                .body(Full::new(frame.freeze()))
                .map_err(|error| error.to_string())?;
            request.headers_mut().extend(collector.headers.clone());
            let response = sender.send_request(request).await.map_err(failed)?;
            accepted(&response)?;
            // The status comes at the end, or alone.
            let (head, body) = response.into_parts();
            let body = body.collect().await.map_err(failed)?;
            let is_early = head.headers.contains_key("grpc-status");
            let status = if is_early { Some(&head.headers) } else { body.trailers() };
            connection.abort();
            status.map_or_else(|| Err("it answered without a status of gRPC".to_owned()), grpc_status)
        }
    }
}

/// What the headers or trailers at the end of a call say of it.
fn grpc_status(headers: &HeaderMap) -> Result<(), String> {
    let text = |name| headers.get(name).map(|value| String::from_utf8_lossy(value.as_bytes()));
    match text("grpc-status") {
        None => Err("it answered without a status of gRPC".to_owned()),
        Some(status) if status == "0" => Ok(()),
        Some(status) => {
            let message = text("grpc-message").unwrap_or_default();
            let (message, _) = percent::decoded(&message);
            let status = visible(&status);
            Err(match visible(&String::from_utf8_lossy(&message)) {
                message if message.is_empty() => format!("it answered with status {status} of gRPC"),
                message => format!("it answered with status {status} of gRPC: {message}"),
            })
        }
    }
}

/// What somebody else says, for one line: not too long, and with nothing that is not seen.
fn visible(text: &str) -> String {
    let mut shown = String::new();
    for c in text.chars().take(REASON_CHARS_MAX) {
        match c.is_control() {
            true => shown.extend(c.escape_default()),
            false => shown.push(c),
        }
    }
    if text.chars().nth(REASON_CHARS_MAX).is_some() {
        shown.push_str("...");
    }
    shown
}

fn accepted(response: &Response<Incoming>) -> Result<(), String> {
    let status = response.status();
    if status.is_success() { Ok(()) } else { Err(format!("it answered with status {status}")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statuses_of_grpc() {
        let of = |status: &[u8], message: Option<&[u8]>| {
            let mut headers = HeaderMap::new();
            headers.insert("grpc-status", status.try_into().unwrap());
            if let Some(message) = message {
                headers.insert("grpc-message", message.try_into().unwrap());
            }
            grpc_status(&headers)
        };
        assert_eq!(of(b"0", Some(b"fine")), Ok(()));
        let status = "it answered with status 14 of gRPC";
        assert_eq!(of(b"14", None), Err(status.to_owned()));
        for (message, shown) in [
            (&b"no room"[..], "no room"),
            (b"a%20b%0aE1126%1b[31m %C3%BC %ff 100%", "a b\\nE1126\\u{1b}[31m ü \u{fffd} 100%"),
        ] {
            assert_eq!(of(b"14", Some(message)), Err(format!("{status}: {shown}")));
        }
        let long = of(b"14", Some(&[b'x'; 10_000])).unwrap_err();
        assert_eq!(long, format!("{status}: {}...", "x".repeat(REASON_CHARS_MAX)));
        assert!(grpc_status(&HeaderMap::new()).is_err());
    }
}
