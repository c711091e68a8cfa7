//! Google Cloud Storage by its JSON interface, which is what Google's own clients and emulators of it speak.

use std::{
    fmt::Write as _,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use bytes::Bytes;
use futures_util::{StreamExt, stream::BoxStream};
use hyper::{
    StatusCode,
    header::{AUTHORIZATION, HeaderValue},
};
use object_store::{
    Error, Result,
    client::{HttpRequest, HttpRequestBody, HttpResponse, HttpService},
    gcp::{GcpCredentialProvider, GoogleCloudStorageBuilder},
};
use serde::Deserialize;

use crate::{
    credentials::{Environment, GcsCredential},
    crypto::Crypto,
    http::Http,
    store::{Listed, Page, retries},
};

/// What Google calls its storage.
const HOST: &str = "https://storage.googleapis.com";
/// Where an emulator is, as Google's clients read it.
const EMULATORS: [&str; 2] = ["STORAGE_EMULATOR_HOST", "CLOUD_STORAGE_EMULATOR_ENDPOINT"];
/// How often something is asked that the storage has no answer to at the moment.
const ATTEMPTS_MAX: u32 = 4;

/// A bucket.
#[derive(Clone)]
pub(crate) struct Gcs {
    http: Http,
    /// Scheme, host and port.
    host: String,
    bucket: String,
    /// `None` for an emulator.
    credentials: Option<GcpCredentialProvider>,
    /// Whether there have to be credentials: without a file a bucket may be public.
    has_file: bool,
    is_anonymous: Arc<AtomicBool>,
}

/// A part of a listing as Google writes it.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Part {
    #[serde(default)]
    items: Vec<Item>,
    #[serde(default)]
    prefixes: Vec<String>,
    next_page_token: Option<String>,
}

/// An object as Google writes it.
#[derive(Deserialize)]
struct Item {
    name: String,
    size: String,
    generation: String,
}

impl Gcs {
    pub fn new(bucket: &str, credential: &GcsCredential, environment: Environment<'_>, http: Http) -> Result<Self> {
        let emulator = EMULATORS.iter().find_map(|name| environment(name)).map(|host| match host.contains("://") {
            true => host.trim_end_matches('/').to_owned(),
            false => format!("http://{host}"),
        });
        let has_file = !credential.path.is_empty();
        let credentials = match emulator {
            Some(_) => None,
            None => {
                let mut builder = GoogleCloudStorageBuilder::new().with_bucket_name(bucket).with_retry(retries());
                builder = builder.with_crypto_provider(Arc::new(Crypto)).with_http_connector(http.clone());
                if has_file {
                    builder = builder.with_application_credentials(&credential.path);
                }
                Some(builder.build()?.credentials().clone())
            }
        };
        let host = emulator.unwrap_or_else(|| HOST.to_owned());
        Ok(Self { http, host, bucket: bucket.to_owned(), credentials, has_file, is_anonymous: Arc::default() })
    }

    /// A part of the names that begin with `prefix`; with `is_flat`, those below folders are left out for their folders.
    pub async fn list(&self, prefix: &str, is_flat: bool, token: Option<&str>) -> Result<Page> {
        let mut url = format!("{}/storage/v1/b/{}/o?prefix={}", self.host, self.bucket, quoted(prefix));
        url.push_str("&fields=items(name,size,generation),prefixes,nextPageToken");
        if is_flat {
            url.push_str("&delimiter=%2F");
        }
        if let Some(token) = token {
            let _ = write!(url, "&pageToken={}", quoted(token));
        }
        let response = self.send(&url, prefix).await?;
        let mut parts = response.into_body().bytes_stream();
        let mut text = Vec::new();
        while let Some(part) = parts.next().await {
            text.extend_from_slice(&part.map_err(failed)?);
        }
        let part: Part = serde_json::from_slice(&text).map_err(failed)?;
        let listed = |item: Item| {
            let bytes = item.size.parse().map_err(failed)?;
            Ok(Listed { path: item.name, bytes, version: item.generation })
        };
        Ok(Page {
            objects: part.items.into_iter().map(listed).collect::<Result<_>>()?,
            folders: part.prefixes,
            next: part.next_page_token.filter(|token| !token.is_empty()),
        })
    }

    /// The content of an object of a certain generation.
    pub async fn get(&self, name: &str, generation: &str) -> Result<BoxStream<'static, Result<Bytes>>> {
        let (host, bucket) = (&self.host, &self.bucket);
        let url =
            format!("{host}/storage/v1/b/{bucket}/o/{}?alt=media&generation={}", quoted(name), quoted(generation));
        let response = self.send(&url, name).await?;
        Ok(response.into_body().bytes_stream().map(|part| part.map_err(failed)).boxed())
    }

    /// Asks, again where that helps.
    async fn send(&self, url: &str, path: &str) -> Result<HttpResponse> {
        let mut attempt = 1;
        loop {
            let mut request = HttpRequest::new(HttpRequestBody::empty());
            *request.uri_mut() = url.parse().map_err(failed)?;
            if let Some(token) = self.token().await? {
                let value = HeaderValue::try_from(format!("Bearer {token}")).map_err(failed)?;
                request.headers_mut().insert(AUTHORIZATION, value);
            }
            let answer = self.http.call(request).await;
            let is_passing = match &answer {
                Ok(answer) => answer.status().is_server_error() || answer.status() == StatusCode::TOO_MANY_REQUESTS,
                Err(_) => true,
            };
            if is_passing && attempt < ATTEMPTS_MAX {
                tokio::time::sleep(Duration::from_millis(100) * 2u32.pow(attempt)).await;
                attempt += 1;
                continue;
            }
            let answer = answer.map_err(failed)?;
            let (status, path) = (answer.status(), path.to_owned());
            let source = || format!("status {status}").into();
            return match status {
                status if status.is_success() => Ok(answer),
                StatusCode::NOT_FOUND => Err(Error::NotFound { path, source: source() }),
                StatusCode::FORBIDDEN => Err(Error::PermissionDenied { path, source: source() }),
                StatusCode::UNAUTHORIZED => Err(Error::Unauthenticated { path, source: source() }),
                _ => Err(Error::Generic { store: "GCS", source: source() }),
            };
        }
    }

    /// What requests are authorised with, if anything: without a file, who cannot say who he is reads what is public.
    async fn token(&self) -> Result<Option<String>> {
        let Some(credentials) = self.credentials.as_ref().filter(|_| !self.is_anonymous.load(Relaxed)) else {
            return Ok(None);
        };
        match credentials.get_credential().await {
            Ok(credential) => Ok(Some(credential.bearer.clone()).filter(|token| !token.is_empty())),
            Err(error) if self.has_file => Err(error),
            Err(error) => {
                tracing::warn!("gs://{}: no credentials, only public buckets can be read: {error}", self.bucket);
                self.is_anonymous.store(true, Relaxed);
                Ok(None)
            }
        }
    }
}

fn failed(error: impl std::error::Error + Send + Sync + 'static) -> Error {
    Error::Generic { store: "GCS", source: Box::new(error) }
}

/// A name as a part of a path or query.
fn quoted(name: &str) -> String {
    name.bytes().fold(String::new(), |mut text, byte| {
        match byte {
            byte if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) => text.push(byte as char),
            byte => {
                // Writing into a string never fails.
                let _ = write!(text, "%{byte:02X}");
            }
        }
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_become_parts_of_addresses() {
        assert_eq!(quoted("a/b c?d=1&e%2e/ü.onnx"), "a%2Fb%20c%3Fd%3D1%26e%252e%2F%C3%BC.onnx");
    }
}
