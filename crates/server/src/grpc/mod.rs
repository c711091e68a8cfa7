//! The gRPC protocol.
//!
//! Hyper's HTTP/2 connection hands each call to [`dispatch`], which compares the path; tonic frames and
//! decodes the messages. There are no layers between.

mod begun;
mod call;
pub(crate) mod codec;
mod deadline;
mod decoupled;
mod gathered;
mod infer;
mod pings;
mod service;
mod status;
mod stream;

use std::{
    convert::Infallible,
    future::Future,
    pin::Pin,
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Duration,
};

use hyper::{
    Request, Response, StatusCode,
    body::Incoming,
    header::{CONTENT_TYPE, HeaderMap},
    service::service_fn,
};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tonic::{Status, body::Body, codec::CompressionEncoding, codegen::Service};

use self::{
    begun::{Calls, Heard},
    call::{Pauses, pause},
    gathered::Gathered,
    pings::Watched,
    proto::{grpc_inference_service_server::GrpcInferenceServiceServer, health::health_server::HealthServer},
    service::HealthService,
};
pub(crate) use self::{
    pings::PingLimits,
    service::InferenceService,
    status::{from_error, text_of},
};
use crate::{
    flags::GrpcFlags,
    listen::Stop,
    restricted::{Group, Restrictions},
    services::Services,
    tls::Stream,
};

/// The types of `grpc_service.proto` and `health.proto`.
#[allow(missing_docs, clippy::all)]
pub(crate) mod proto {
    tonic::include_proto!("inference");

    pub(crate) mod health {
        tonic::include_proto!("grpc.health.v1");
    }
}

/// Largest message, in and out.
const MESSAGE_BYTES_MAX: usize = i32::MAX as usize;

/// Calls of a connection that may be open, and as many that their clients may give up before they have begun. gRPC's own
/// servers set no limits: beyond one, calls that have nothing to do with each other would wait, or end with the connection.
const STREAMS_MAX: u32 = 10_000;

/// HTTP/2 windows that let a tensor of a few megabytes through without waiting.
const STREAM_WINDOW_BYTES: u32 = 4 << 20;
const CONNECTION_WINDOW_BYTES: u32 = 16 << 20;

/// How connections are served.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    pub keepalive_time: Duration,
    pub keepalive_timeout: Duration,
    pub connection_age_max: Option<Duration>,
    pub connection_age_grace: Option<Duration>,
    pub ping_limits: PingLimits,
}

impl Settings {
    pub fn new(flags: &GrpcFlags) -> Self {
        Self {
            keepalive_time: flags.keepalive_time,
            keepalive_timeout: flags.keepalive_timeout,
            connection_age_max: flags.connection_age_max,
            connection_age_grace: flags.connection_age_grace,
            ping_limits: flags.ping_limits,
        }
    }
}

/// The services of the port; one copy per connection.
#[derive(Debug, Clone)]
pub(crate) struct Routes {
    inference: GrpcInferenceServiceServer<InferenceService>,
    health: HealthServer<HealthService>,
    restrictions: Arc<Restrictions>,
    pauses: Pauses,
}

impl Routes {
    pub fn new(services: &Arc<Services>, flags: &GrpcFlags) -> Self {
        let pauses = Pauses::read(|name| std::env::var(name).ok());
        let service = InferenceService::new(services.clone()).with_pauses(pauses);
        let mut inference = GrpcInferenceServiceServer::new(service)
            .max_decoding_message_size(MESSAGE_BYTES_MAX)
            .max_encoding_message_size(MESSAGE_BYTES_MAX)
            .accept_compressed(CompressionEncoding::Gzip)
            .accept_compressed(CompressionEncoding::Deflate);
        if flags.compress {
            inference =
                inference.send_compressed(CompressionEncoding::Gzip).send_compressed(CompressionEncoding::Deflate);
        }
        let health = HealthServer::new(HealthService::new(services.clone()))
            .accept_compressed(CompressionEncoding::Gzip)
            .accept_compressed(CompressionEncoding::Deflate);
        Self { inference, health, restrictions: Arc::new(flags.restrictions.clone()), pauses }
    }
}

type Answer = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

fn dispatch(routes: &mut Routes, request: Request<Incoming>) -> Answer {
    let group = method_group(request.uri().path());
    let (pauses, time) = (routes.pauses, deadline::of(request.headers()));
    let answer = answer(routes, group, request.map(Gathered::new));
    let answer = match time {
        Some(time) => deadline::within(time, answer),
        None => answer,
    };
    if pauses.other.is_zero() || matches!(group, Some(Group::Inference) | None) {
        return answer;
    }
    Box::pin(async move {
        let response = answer.await;
        pause(pauses.other).await;
        response
    })
}

/// Whether a request says that it is one of gRPC, as all of its clients do (gRPC over HTTP2, "Content-Type"). A page of another site
/// cannot without asking first, which nobody allows it: any other type it could send here, where connections are encrypted.
fn is_grpc(headers: &HeaderMap) -> bool {
    let kind = headers.get(CONTENT_TYPE).and_then(|kind| kind.as_bytes().strip_prefix(b"application/grpc"));
    matches!(kind, Some([] | [b'+' | b';', ..]))
}

fn answer(routes: &mut Routes, group: Option<Group>, request: Request<Gathered<Incoming>>) -> Answer {
    if !is_grpc(request.headers()) {
        let mut refused = Response::new(Body::empty());
        *refused.status_mut() = StatusCode::UNSUPPORTED_MEDIA_TYPE;
        return Box::pin(async { Ok(refused) });
    }
    let path = request.uri().path();
    let header = group.and_then(|group| routes.restrictions.missing(group, request.headers()));
    if let Some(header) = header {
        let text = format!("This protocol is restricted, expecting header '{header}'");
        return Box::pin(async { Ok(Status::unavailable(text).into_http()) });
    }
    if path.starts_with("/inference.GRPCInferenceService/") {
        tracing::debug!("gRPC request: {path}");
        routes.inference.call(request)
    } else if path.starts_with("/grpc.health.v1.Health/") {
        routes.health.call(request)
    } else {
        Box::pin(async { Ok(Status::unimplemented("").into_http()) })
    }
}

/// What a method belongs to where protocols are restricted; `None` for one that does not exist.
fn method_group(path: &str) -> Option<Group> {
    let Some(method) = path.strip_prefix("/inference.GRPCInferenceService/") else {
        return path.starts_with("/grpc.health.v1.Health/").then_some(Group::Health);
    };
    Some(match method {
        "ServerLive" | "ServerReady" | "ModelReady" => Group::Health,
        "ServerMetadata" | "ModelMetadata" => Group::Metadata,
        "ModelInfer" | "ModelStreamInfer" => Group::Inference,
        "ModelConfig" => Group::ModelConfig,
        "ModelStatistics" => Group::Statistics,
        "RepositoryIndex" | "RepositoryModelLoad" | "RepositoryModelUnload" => Group::ModelRepository,
        "SystemSharedMemoryStatus" | "SystemSharedMemoryRegister" | "SystemSharedMemoryUnregister" => {
            Group::SharedMemory
        }
        "CudaSharedMemoryStatus" | "CudaSharedMemoryRegister" | "CudaSharedMemoryUnregister" => Group::SharedMemory,
        "TraceSetting" => Group::Trace,
        "LogSettings" => Group::Logging,
        _ => return None,
    })
}

/// Serves the calls of one connection until it ends; after [`Stop`], to the end of those that run.
pub(crate) async fn serve_connection(stream: Stream, routes: Routes, settings: Settings, mut stop: Stop) {
    let calls = Calls::default();
    let mut builder = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
    builder
        .timer(TokioTimer::new())
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .max_concurrent_streams(STREAMS_MAX)
        .max_pending_accept_reset_streams(STREAMS_MAX as usize)
        .keep_alive_interval(settings.keepalive_time)
        .keep_alive_timeout(settings.keepalive_timeout);
    let stream = Watched::new(stream, settings.ping_limits);
    let has_begun = stream.has_begun();
    let stream = Heard::new(stream, calls.clone());
    let service = service_fn(move |request| calls.begin(dispatch(&mut routes.clone(), request)));
    let mut connection = std::pin::pin!(builder.serve_connection(TokioIo::new(stream), service));
    let too_old = async {
        match settings.connection_age_max {
            Some(age) => tokio::time::sleep(age).await,
            None => std::future::pending().await,
        }
    };
    // How a connection ends is the client's affair.
    tokio::select! {
        _ = connection.as_mut() => {}
        // Hyper would wait for the beginning of a connection.
        () = stop.requested() => if has_begun.load(Relaxed) {
            connection.as_mut().graceful_shutdown();
            let _ = connection.await;
        },
        () = too_old => {
            connection.as_mut().graceful_shutdown();
            match settings.connection_age_grace {
                Some(grace) => drop(tokio::time::timeout(grace, connection).await),
                None => drop(connection.await),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_grpc_is_answered() {
        let kind = |value: Option<&str>| {
            let mut headers = HeaderMap::new();
            value.map(|value| headers.insert(CONTENT_TYPE, value.parse().unwrap()));
            is_grpc(&headers)
        };
        assert!(
            ["application/grpc", "application/grpc+proto", "application/grpc;charset=utf-8"]
                .into_iter()
                .all(|value| kind(Some(value)))
        );
        let others =
            ["text/plain", "application/grpc-web", "application/json", "application/x-www-form-urlencoded", ""];
        assert!(!kind(None) && !others.into_iter().any(|value| kind(Some(value))));
    }

    #[test]
    fn no_method_is_without_a_group() {
        for (service, proto) in [
            ("inference.GRPCInferenceService", include_str!("../../proto/grpc_service.proto")),
            ("grpc.health.v1.Health", include_str!("../../proto/health.proto")),
        ] {
            let methods = proto.lines().filter_map(|line| line.trim().strip_prefix("rpc "));
            let names: Vec<&str> = methods.filter_map(|line| line.split('(').next()).map(str::trim).collect();
            assert!(!names.is_empty());
            for name in names {
                assert!(method_group(&format!("/{service}/{name}")).is_some(), "{name}");
            }
        }
        assert_eq!(method_group("/other/ServerLive"), None);
    }
}
