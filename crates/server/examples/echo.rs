//! A bare axum and tonic server that answers every inference request with its own bytes.
//!
//! The roof of what our server could do on the same libraries: `benches/load` compares with it.
//!
//! ```text
//! cargo run --release --example echo -- HTTP_PORT GRPC_PORT
//! ```

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::net::{Ipv4Addr, SocketAddr};
use std::pin::Pin;
use std::task::{Context, Poll};

use axum::Router;
use axum::routing::{get, post};
use bytes::Bytes;
use tonic::server::{NamedService, UnaryService};
use tonic::{Request, Response, Status};

mod support;

/// Answers a unary call with the message it got.
struct Same;

impl UnaryService<Bytes> for Same {
    type Response = Bytes;
    type Future = Ready<Result<Response<Bytes>, Status>>;

    fn call(&mut self, request: Request<Bytes>) -> Self::Future {
        ready(Ok(Response::new(request.into_inner())))
    }
}

/// The service that the load generator calls; every method of it echoes.
#[derive(Clone)]
struct Echo;

impl NamedService for Echo {
    const NAME: &'static str = "inference.GRPCInferenceService";
}

impl tower_service::Service<http::Request<tonic::body::Body>> for Echo {
    type Response = http::Response<tonic::body::Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<tonic::body::Body>) -> Self::Future {
        Box::pin(async move { Ok(tonic::server::Grpc::new(support::Raw).unary(Same, request).await) })
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut ports = std::env::args().skip(1).map(|port| port.parse::<u16>());
    let (Some(http_port), Some(grpc_port)) = (ports.next(), ports.next()) else {
        return Err("usage: echo HTTP_PORT GRPC_PORT".into());
    };
    let address = |port| SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let routes = Router::new()
        .route("/v2/health/ready", get(|| async {}))
        .route("/v2/models/{model}/infer", post(|body: Bytes| async { body }));
    let listener = tokio::net::TcpListener::bind(address(http_port?)).await?;
    let http = axum::serve(listener, routes);
    let grpc = tonic::transport::Server::builder().add_service(Echo).serve(address(grpc_port?));
    let (http, grpc) = tokio::join!(http.into_future(), grpc);
    http?;
    Ok(grpc?)
}
