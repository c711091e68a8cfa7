//! The HTTP client: hyper, and rustls with the cryptography of the server's ports.

use std::{error::Error as StdError, io, time::Duration};

use async_trait::async_trait;
use http_body_util::BodyExt;
use hyper::header::CONTENT_LENGTH;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector as TcpConnector},
    rt::TokioExecutor,
};
use object_store::{
    ClientOptions,
    client::{
        HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpRequestBody, HttpResponse,
        HttpResponseBody, HttpService,
    },
};
use rustls::ClientConfig;
use tokio::time::timeout;

use crate::listing::Listings;

/// How long a connection may take.
const CONNECT_MAX: Duration = Duration::from_secs(5);
/// How long the head of an answer may take, and each part of its body.
pub(crate) const WAIT_MAX: Duration = Duration::from_secs(30);

/// Bytes of an answer that is none which an error shows.
const TOLD_BYTES: usize = 100;

/// Requests of one repository, with connections that are kept.
#[derive(Debug, Clone)]
pub(crate) struct Http {
    client: Client<HttpsConnector<TcpConnector>, HttpRequestBody>,
    listings: Listings,
}

impl Http {
    /// A client that trusts whom `tls` trusts.
    pub fn new(tls: ClientConfig, listings: Listings) -> Self {
        let mut tcp = TcpConnector::new();
        tcp.enforce_http(false);
        tcp.set_connect_timeout(Some(CONNECT_MAX));
        tcp.set_nodelay(true);
        // HTTP/1.1 alone: Amazon's servers speak nothing else.
        let connector =
            HttpsConnectorBuilder::new().with_tls_config(tls).https_or_http().enable_http1().wrap_connector(tcp);
        let client = Client::builder(TokioExecutor::new()).pool_idle_timeout(Duration::from_secs(20)).build(connector);
        Self { client, listings }
    }
}

#[async_trait]
impl HttpService for Http {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let is_listing = request.uri().query().is_some_and(Listings::is_one);
        let answered = timeout(WAIT_MAX, self.client.request(request)).await;
        let response = answered.map_err(|_| late())?.map_err(|error| {
            let kind = if error.is_connect() { HttpErrorKind::Connect } else { kind(&error) };
            HttpError::new_boxed(kind, chain(&error).into())
        })?;
        let (mut parts, body) = response.into_parts();
        let body = body.map_err(|error| HttpError::new_boxed(kind(&error), chain(&error).into()));
        if is_listing && parts.status.is_success() {
            // Some megabytes at most: storages list in pages.
            let listing = timeout(WAIT_MAX, body.collect()).await.map_err(|_| late())??.to_bytes();
            if !Listings::holds_one(&listing) {
                let begin = String::from_utf8_lossy(&listing[..listing.len().min(TOLD_BYTES)]).into_owned();
                let why = format!("the answer is no listing, but begins with '{}'", begin.escape_debug());
                return Err(HttpError::new(HttpErrorKind::Decode, io::Error::new(io::ErrorKind::InvalidData, why)));
            }
            parts.headers.remove(CONTENT_LENGTH);
            return Ok(HttpResponse::from_parts(parts, self.listings.clean(listing.into()).into()));
        }
        Ok(HttpResponse::from_parts(parts, HttpResponseBody::new(body)))
    }
}

impl HttpConnector for Http {
    fn connect(&self, _: &ClientOptions) -> object_store::Result<HttpClient> {
        Ok(HttpClient::new(self.clone()))
    }
}

fn late() -> HttpError {
    let why = format!("no answer within {} s", WAIT_MAX.as_secs());
    HttpError::new(HttpErrorKind::Timeout, io::Error::new(io::ErrorKind::TimedOut, why))
}

/// Whether it helps to ask again.
fn kind(error: &(dyn StdError + 'static)) -> HttpErrorKind {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(error) = error.downcast_ref::<hyper::Error>() {
            if error.is_closed() || error.is_incomplete_message() || error.is_body_write_aborted() {
                return HttpErrorKind::Request;
            }
        } else if let Some(error) = error.downcast_ref::<io::Error>() {
            return match error.kind() {
                io::ErrorKind::TimedOut => HttpErrorKind::Timeout,
                io::ErrorKind::InvalidData => HttpErrorKind::Unknown,
                _ => HttpErrorKind::Interrupted,
            };
        }
        next = error.source();
    }
    HttpErrorKind::Unknown
}

/// An error with what caused it, since the causes say what happened.
pub(crate) fn chain(error: &(dyn StdError + 'static)) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text.push_str(": ");
            text.push_str(&cause_text);
        }
        next = cause.source();
    }
    text
}
