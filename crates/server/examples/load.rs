//! A load generator: a fixed number of requests in flight for some seconds, one line of JSON at the end.
//!
//! ```text
//! load http ADDRESS PATH BODY_FILE HEADER_LENGTH CONCURRENCY SECONDS
//! load grpc ADDRESS BODY_FILE CONCURRENCY SECONDS
//! ```
//!
//! `HEADER_LENGTH` is sent as `Inference-Header-Content-Length` unless it is `-`. Where `BODY_FILE` is a folder, each
//! connection has a folder of its own in it, named by its number from 0, and sends the files there in the order of their names,
//! again and again, and all of them before it ends: a sequence. Latencies are in microseconds; the first fifth of the time
//! warms up and is not counted.

use std::{
    io,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use bytes::Bytes;
use http::uri::PathAndQuery;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

mod support;

type Error = Box<dyn std::error::Error + Send + Sync>;

const USAGE: &str = "usage: load http ADDRESS PATH BODY HEADER_LENGTH CONCURRENCY SECONDS | \
                     load grpc ADDRESS BODY CONCURRENCY SECONDS";
const MODEL_INFER: &str = "/inference.GRPCInferenceService/ModelInfer";
const REPLY_BYTES_MAX: usize = 4 << 20;

/// When to begin counting and when to stop.
#[derive(Clone, Copy)]
struct Window {
    from: Instant,
    to: Instant,
}

impl Window {
    fn new(seconds: f64) -> Self {
        let now = Instant::now();
        Window { from: now + Duration::from_secs_f64(seconds * 0.2), to: now + Duration::from_secs_f64(seconds) }
    }
}

/// What one connection saw.
#[derive(Default)]
struct Seen {
    /// Latency of each counted request, in microseconds.
    latencies_us: Vec<f32>,
    /// All requests, counted or not: the server's processor time covers them too.
    requests: u64,
    errors: u64,
}

impl Seen {
    fn record(&mut self, window: Window, start: Instant, good: bool) {
        self.requests += 1;
        self.errors += u64::from(!good);
        if start >= window.from {
            self.latencies_us.push(start.elapsed().as_secs_f32() * 1e6);
        }
    }

    fn add(&mut self, other: Seen) {
        self.latencies_us.extend(other.latencies_us);
        self.requests += other.requests;
        self.errors += other.errors;
    }

    fn report(mut self, seconds: f64) -> String {
        self.latencies_us.sort_by(f32::total_cmp);
        let at = |share: f64| {
            let last = self.latencies_us.len().saturating_sub(1);
            self.latencies_us.get((last as f64 * share) as usize).copied().unwrap_or(f32::NAN)
        };
        format!(
            r#"{{"requests":{},"errors":{},"rps":{:.1},"p50_us":{:.1},"p99_us":{:.1}}}"#,
            self.requests,
            self.errors,
            self.latencies_us.len() as f64 / (seconds * 0.8),
            at(0.5),
            at(0.99)
        )
    }
}

/// The bodies that a connection sends.
fn bodies(place: &Path, connection: usize) -> io::Result<Vec<Vec<u8>>> {
    if !place.is_dir() {
        return Ok(vec![std::fs::read(place)?]);
    }
    let files = std::fs::read_dir(place.join(connection.to_string()))?.map(|entry| Ok(entry?.path()));
    let mut files: Vec<PathBuf> = files.collect::<io::Result<_>>()?;
    files.sort();
    files.into_iter().map(std::fs::read).collect()
}

/// One keep-alive connection, one request at a time.
async fn http_connection(address: String, requests: Vec<Bytes>, window: Window) -> Result<Seen, Error> {
    let mut stream = TcpStream::connect(&address).await?;
    stream.set_nodelay(true)?;
    let mut reply = Vec::with_capacity(8192);
    let mut seen = Seen::default();
    while Instant::now() < window.to {
        for request in &requests {
            let start = Instant::now();
            stream.write_all(request).await?;
            reply.clear();
            while reply_length(&reply)?.is_none_or(|length| reply.len() < length) {
                if stream.read_buf(&mut reply).await? == 0 {
                    return Err("the server closed the connection".into());
                }
            }
            seen.record(window, start, reply.starts_with(b"HTTP/1.1 200"));
        }
    }
    Ok(seen)
}

/// Bytes of head and body, once the head is complete.
fn reply_length(reply: &[u8]) -> Result<Option<usize>, Error> {
    let Some(head) = reply.windows(4).position(|w| w == b"\r\n\r\n") else {
        return Ok(None);
    };
    let text = std::str::from_utf8(&reply[..head])?.to_ascii_lowercase();
    let length = text
        .lines()
        .find_map(|line| line.strip_prefix("content-length:"))
        .ok_or("the reply has no Content-Length")?
        .trim()
        .parse::<usize>()?;
    if length > REPLY_BYTES_MAX {
        return Err("the reply is too large".into());
    }
    Ok(Some(head + 4 + length))
}

/// One call at a time on a connection that all loops share.
async fn grpc_loop(channel: tonic::transport::Channel, message: Bytes, window: Window) -> Result<Seen, Error> {
    let mut client = tonic::client::Grpc::new(channel);
    let mut seen = Seen::default();
    while Instant::now() < window.to {
        let start = Instant::now();
        client.ready().await?;
        let path = PathAndQuery::from_static(MODEL_INFER);
        let reply = client.unary(tonic::Request::new(message.clone()), path, support::Raw).await;
        seen.record(window, start, reply.is_ok());
    }
    Ok(seen)
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Error> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let mut loops = JoinSet::new();
    let seconds = match arguments[..] {
        ["http", address, path, body, header_length, concurrency, seconds] => {
            let request = |body: Vec<u8>| {
                let mut head = format!("POST {path} HTTP/1.1\r\nHost: {address}\r\nContent-Length: {}\r\n", body.len());
                if header_length != "-" {
                    head += &format!("Inference-Header-Content-Length: {header_length}\r\n");
                }
                Bytes::from([head.as_bytes(), b"\r\n", &body].concat())
            };
            let connections = 0..concurrency.parse()?;
            let requests: Vec<Vec<Bytes>> = connections
                .map(|connection| Ok(bodies(Path::new(body), connection)?.into_iter().map(request).collect()))
                .collect::<io::Result<_>>()?;
            let seconds = seconds.parse()?;
            let window = Window::new(seconds);
            for requests in requests {
                loops.spawn(http_connection(address.to_owned(), requests, window));
            }
            seconds
        }
        ["grpc", address, body, concurrency, seconds] => {
            let message = Bytes::from(std::fs::read(body)?);
            let channel = tonic::transport::Endpoint::from_shared(format!("http://{address}"))?.connect().await?;
            let seconds = seconds.parse()?;
            let window = Window::new(seconds);
            for _ in 0..concurrency.parse()? {
                loops.spawn(grpc_loop(channel.clone(), message.clone(), window));
            }
            seconds
        }
        _ => return Err(USAGE.into()),
    };
    let mut seen = Seen::default();
    while let Some(one) = loops.join_next().await {
        seen.add(one??);
    }
    println!("{}", seen.report(seconds));
    Ok(())
}
