//! One message to a collector: a connection each, since there are few.

use bytes::{BufMut, Bytes, BytesMut};
use http_body_util::{BodyExt, Full};
use hyper::{
    Method, Request, Response, Uri,
    body::Incoming,
    client::conn::{http1, http2},
    header::{CONTENT_TYPE, HOST, TE},
};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpStream;

use super::Protocol;

/// Where the service of gRPC is.
const EXPORT: &str = "/opentelemetry.proto.collector.trace.v1.TraceService/Export";

/// Sends a message, and says why it was not taken.
pub(super) async fn post(url: &Uri, protocol: Protocol, message: Vec<u8>) -> Result<(), String> {
    let host = url.host().ok_or("its address has no host")?;
    let port = url.port_u16().unwrap_or(80);
    let stream = TcpStream::connect((host.trim_matches(['[', ']']), port)).await.map_err(|error| error.to_string())?;
    let io = TokioIo::new(stream);
    let failed = |error: hyper::Error| error.to_string();
    match protocol {
        Protocol::Http => {
            let (mut sender, connection) = http1::handshake(io).await.map_err(failed)?;
            let connection = tokio::spawn(connection);
            let path = url.path_and_query().map_or("/", |path| path.as_str());
            let request = Request::builder()
                .method(Method::POST)
                .uri(path)
                .header(HOST, format!("{host}:{port}"))
                .header(CONTENT_TYPE, "application/x-protobuf")
                .body(Full::new(Bytes::from(message)))
                .map_err(|error| error.to_string())?;
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
            let request = Request::builder()
                .method(Method::POST)
                .uri(format!("http://{host}:{port}{EXPORT}"))
                .header(CONTENT_TYPE, "application/grpc")
                .header(TE, "trailers")
                .body(Full::new(frame.freeze()))
                .map_err(|error| error.to_string())?;
            let response = sender.send_request(request).await.map_err(failed)?;
            accepted(&response)?;
            // The status comes at the end, or alone.
            let early = response.headers().get("grpc-status").cloned();
            let body = response.into_body().collect().await.map_err(failed)?;
            let status = early.or_else(|| body.trailers().and_then(|trailers| trailers.get("grpc-status").cloned()));
            connection.abort();
            match status {
                Some(status) if status == "0" => Ok(()),
                Some(status) => Err(format!("it answered with status {} of gRPC", status.to_str().unwrap_or("?"))),
                None => Err("it answered without a status of gRPC".to_owned()),
            }
        }
    }
}

fn accepted(response: &Response<Incoming>) -> Result<(), String> {
    let status = response.status();
    if status.is_success() { Ok(()) } else { Err(format!("it answered with status {status}")) }
}
