//! The client of one bucket or container.

use std::{fmt, sync::Arc, time::Duration};

use bytes::Bytes;
use futures_util::{
    StreamExt, TryStreamExt,
    stream::{self, BoxStream},
};
use halimede_serving::Error;
use hyper::{Method, StatusCode};
use object_store::{
    BackoffConfig, GetOptions, ObjectMeta, ObjectStore, RetryConfig,
    aws::{AmazonS3, AmazonS3Builder, AmazonS3ConfigKey},
    azure::{AzureConfigKey, MicrosoftAzure, MicrosoftAzureBuilder},
    client::{HttpRequest, HttpRequestBody, HttpService},
    path::Path,
    signer::Signer,
};

use crate::{
    Address, Credentials,
    credentials::{AzureCredential, Environment, S3Credential},
    crypto::Crypto,
    gcs::Gcs,
    http::{Http, chain},
};

/// What the storage answers.
type Result<T, E = object_store::Error> = std::result::Result<T, E>;

/// How long a signed request is good for.
const SIGNED: Duration = Duration::from_secs(60);

/// Where a server without keys gets its credentials from: variables that Amazon's own clients read.
const AMAZON_VARIABLES: [&str; 10] = [
    "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_ENDPOINT_URL_STS",
    "AWS_METADATA_ENDPOINT",
    "AWS_REQUEST_PAYER",
    "AWS_ROLE_ARN",
    "AWS_ROLE_SESSION_NAME",
    "AWS_SKIP_SIGNATURE",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
];

/// A bucket or container.
#[derive(Clone)]
pub(crate) struct Store {
    kind: Kind,
    http: Http,
    /// Whether nobody said who the server is, so that the machine was asked.
    is_keyless: bool,
}

#[derive(Clone)]
enum Kind {
    S3(Arc<AmazonS3>),
    Azure(Arc<MicrosoftAzure>),
    Gcs(Box<Gcs>),
}

/// An object in a listing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Listed {
    /// Its whole name.
    pub path: String,
    pub bytes: u64,
    /// What is another as soon as the content is.
    pub version: String,
}

/// A part of a listing.
#[derive(Debug, Default)]
pub(crate) struct Page {
    pub objects: Vec<Listed>,
    /// Whole names, with or without a slash at the end.
    pub folders: Vec<String>,
    /// What the next part is asked for by.
    pub next: Option<String>,
}

/// The content of an object.
pub(crate) struct Content {
    /// `None` where the storage gives what was asked for or nothing.
    pub version: Option<String>,
    pub parts: BoxStream<'static, Result<Bytes>>,
}

impl Store {
    /// The client for an address, which was `given` so.
    pub fn new(
        given: &str,
        address: &Address,
        credentials: &Credentials,
        environment: Environment<'_>,
        http: Http,
    ) -> Result<Self, Error> {
        let wrong = |error: object_store::Error| Error::invalid(format!("{given}: {}", chain(&error)));
        let mut is_keyless = false;
        let kind = match address {
            Address::S3 { endpoint, bucket, .. } => {
                let credential = credentials.s3(given)?.with_profile(environment)?;
                if credential.has_half_a_key() {
                    tracing::warn!(
                        "{given}: only one of AWS_ACCESS_KEY_ID (key_id) and AWS_SECRET_ACCESS_KEY (secret_key) is given: it \
                         has no effect without the other"
                    );
                }
                is_keyless = !credential.has_keys();
                let builder = s3(&credential, endpoint.as_deref(), bucket, environment).map_err(wrong)?;
                Kind::S3(Arc::new(builder.with_http_connector(http.clone()).build().map_err(wrong)?))
            }
            Address::Azure { account, container, .. } => {
                let builder = azure(credentials.azure(given)?, account, container, environment)
                    .map_err(|why| Error::invalid(format!("{given}: {why}")))?;
                let built = builder.with_http_connector(http.clone()).build().map_err(|error| {
                    Error::invalid(format!(
                        "{given}: {}. Look at AZURE_STORAGE_ACCOUNT and AZURE_STORAGE_KEY, or account_str and account_key in \
                         the file of credentials",
                        chain(&error)
                    ))
                })?;
                Kind::Azure(Arc::new(built))
            }
            Address::Gcs { bucket, .. } => {
                let credential = credentials.gcs(given)?;
                let gcs = Gcs::new(bucket, credential, environment, http.clone()).map_err(|error| {
                    Error::invalid(format!(
                        "{given}: {}. GOOGLE_APPLICATION_CREDENTIALS, or gs in the file of credentials, names '{}': it has \
                         to be the file of a user or service account",
                        chain(&error),
                        credential.path
                    ))
                })?;
                Kind::Gcs(Box::new(gcs))
            }
        };
        Ok(Self { kind, http, is_keyless })
    }

    /// What may help where the storage does not let the server in, or cannot be asked.
    pub fn hint(&self) -> &'static str {
        match self.is_keyless {
            true => {
                " No keys are given (AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE), so that the role of the \
                 machine was asked for."
            }
            false => "",
        }
    }

    /// All objects whose names begin with those of a folder, part by part.
    pub fn list<'a>(&'a self, folder: &'a str) -> BoxStream<'a, Result<Listed>> {
        match self.objects() {
            Some(objects) => match Path::parse(folder) {
                Ok(path) => objects.list(Some(&path)).map(|meta| meta.map(listed)).boxed(),
                Err(error) => stream::once(async move { Err(error.into()) }).boxed(),
            },
            None => stream::try_unfold(Some(None), move |token: Option<Option<String>>| async move {
                let Some(token) = token else { return Ok::<_, object_store::Error>(None) };
                let page = self.page(folder, false, token.as_deref()).await?;
                let objects = stream::iter(page.objects.into_iter().map(Ok));
                Ok(Some((objects, page.next.map(Some))))
            })
            .try_flatten()
            .boxed(),
        }
    }

    /// The folders and objects directly in a folder.
    pub async fn top(&self, folder: &str) -> Result<Page> {
        if let Some(objects) = self.objects() {
            let found = objects.list_with_delimiter(Some(&Path::parse(folder)?)).await?;
            return Ok(Page {
                objects: found.objects.into_iter().map(listed).collect(),
                folders: found.common_prefixes.into_iter().map(String::from).collect(),
                next: None,
            });
        }
        let mut all = self.page(folder, true, None).await?;
        while let Some(token) = all.next.take() {
            let page = self.page(folder, true, Some(&token)).await?;
            all.objects.extend(page.objects);
            all.folders.extend(page.folders);
            all.next = page.next;
        }
        Ok(all)
    }

    async fn page(&self, folder: &str, is_flat: bool, token: Option<&str>) -> Result<Page> {
        let prefix = if folder.is_empty() { String::new() } else { format!("{folder}/") };
        match &self.kind {
            Kind::Gcs(gcs) => gcs.list(&prefix, is_flat, token).await,
            Kind::S3(_) | Kind::Azure(_) => Ok(Page::default()),
        }
    }

    /// The content of an object, of this version where the storage can tell.
    pub async fn get(&self, path: &str, version: &str) -> Result<Content> {
        match (&self.kind, self.objects()) {
            (Kind::Gcs(gcs), _) => Ok(Content { version: None, parts: gcs.get(path, version).await? }),
            (_, Some(objects)) => {
                let got = objects.get_opts(&Path::parse(path)?, GetOptions::default()).await?;
                Ok(Content { version: Some(listed(got.meta.clone()).version), parts: got.into_stream() })
            }
            (_, None) => {
                Err(object_store::Error::NotImplemented { operation: "get".into(), implementer: "store".into() })
            }
        }
    }

    /// The client of those that share one interface.
    fn objects(&self) -> Option<&dyn ObjectStore> {
        match &self.kind {
            Kind::S3(store) => Some(&**store),
            Kind::Azure(store) => Some(&**store),
            Kind::Gcs(_) => None,
        }
    }

    /// Asks the storage whether it lets us in.
    pub async fn check(&self) -> Result<(), Error> {
        match &self.kind {
            Kind::S3(store) => self.check_bucket(store).await,
            // The listing tells.
            Kind::Azure(_) | Kind::Gcs(_) => Ok(()),
        }
    }

    /// The request that Amazon has for this: its answer has no body, so that why is only said by the status.
    async fn check_bucket(&self, store: &AmazonS3) -> Result<(), Error> {
        let refused = |message: &str, why: &str| {
            Error::internal(format!(
                "Unable to create S3 filesystem client. Check account credentials. Exception: '' Message: '{message}' ({why})"
            ))
        };
        let Ok(url) = store.signed_url(Method::HEAD, &Path::ROOT, SIGNED).await else {
            // Without keys nothing can be signed; the listing says what is wrong.
            return Ok(());
        };
        let mut request = HttpRequest::new(HttpRequestBody::empty());
        *request.method_mut() = Method::HEAD;
        *request.uri_mut() = url.as_str().parse().map_err(|_| refused("", "the address is none"))?;
        let response = self.http.call(request).await;
        let response = response.map_err(|error| refused(&chain(&error), "the server cannot be reached"))?;
        let status = response.status();
        let region = response.headers().get("x-amz-bucket-region").and_then(|region| region.to_str().ok());
        match (status, region) {
            (status, _) if status.is_success() => Ok(()),
            (StatusCode::MOVED_PERMANENTLY | StatusCode::BAD_REQUEST, Some(region)) => Err(refused(
                "No response body.",
                &format!("the bucket is in the region {region}: AWS_DEFAULT_REGION={region}"),
            )),
            (StatusCode::NOT_FOUND, _) => Err(refused("No response body.", "status 404: there is no such bucket")),
            _ => Err(refused("No response body.", &format!("status {status}"))),
        }
    }
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match &self.kind {
            Kind::S3(_) => "S3",
            Kind::Azure(_) => "Azure",
            Kind::Gcs(_) => "GCS",
        };
        f.debug_struct("Store").field("kind", &kind).finish_non_exhaustive()
    }
}

fn s3(
    credential: &S3Credential,
    endpoint: Option<&str>,
    bucket: &str,
    environment: Environment<'_>,
) -> object_store::Result<AmazonS3Builder> {
    let mut builder = AmazonS3Builder::new().with_bucket_name(bucket).with_retry(retries());
    builder = builder.with_crypto_provider(Arc::new(Crypto));
    // Triton never writes the bucket into the name of the host.
    builder = builder.with_virtual_hosted_style_request(false);
    if !credential.region.is_empty() {
        builder = builder.with_region(&credential.region);
    }
    if let Some(endpoint) = endpoint {
        builder = builder.with_endpoint(endpoint).with_allow_http(endpoint.starts_with("http://"));
    }
    if credential.has_keys() {
        builder = builder.with_access_key_id(&credential.key_id).with_secret_access_key(&credential.secret_key);
        if !credential.session_token.is_empty() {
            builder = builder.with_token(&credential.session_token);
        }
        return Ok(builder);
    }
    for variable in AMAZON_VARIABLES {
        if let Some(value) = environment(variable) {
            let key: AmazonS3ConfigKey = variable.to_lowercase().parse()?;
            builder = builder.with_config(key, value);
        }
    }
    Ok(builder)
}

/// Where an emulator is, as other clients read it. Its accounts are parts of paths.
const AZURITE: &str = "AZURITE_BLOB_STORAGE_URL";

fn azure(
    credential: &AzureCredential,
    account: &str,
    container: &str,
    environment: Environment<'_>,
) -> Result<MicrosoftAzureBuilder, String> {
    let account = if credential.account_str.is_empty() { account } else { &credential.account_str };
    let mut builder = MicrosoftAzureBuilder::new().with_account(account).with_container_name(container);
    builder = builder.with_retry(retries()).with_crypto_provider(Arc::new(Crypto));
    if environment(AZURITE).is_some() {
        builder = builder.with_use_emulator(true);
    }
    match credential.auth_type.as_str() {
        "managed_identity" => {
            builder = builder.with_credential_type("managed_identity");
            if !credential.client_id.is_empty() {
                builder = builder.with_client_id(&credential.client_id);
            }
        }
        "default" => {
            // Service principals, workload identities, then the identity of the machine.
            for variable in [
                "AZURE_CLIENT_ID",
                "AZURE_CLIENT_SECRET",
                "AZURE_TENANT_ID",
                "AZURE_FEDERATED_TOKEN_FILE",
                "AZURE_AUTHORITY_HOST",
            ] {
                if let (Some(value), Ok(key)) =
                    (environment(variable), variable.to_lowercase().parse::<AzureConfigKey>())
                {
                    builder = builder.with_config(key, value);
                }
            }
        }
        "" | "key" => match credential.account_key.as_str() {
            "" => builder = builder.with_skip_signature(true),
            key => builder = builder.with_access_key(key),
        },
        other => {
            return Err(format!(
                "there is no authentication '{other}': AZURE_STORAGE_AUTH_TYPE, or auth_type in the file of credentials, is \
                 key, managed_identity or default"
            ));
        }
    }
    Ok(builder)
}

fn listed(meta: ObjectMeta) -> Listed {
    let version = match &meta.e_tag {
        // Azure puts it into quotes in headers, and leaves them out in listings.
        Some(tag) => tag.trim_matches('"').to_owned(),
        None => format!("{} {}", meta.last_modified.timestamp_nanos_opt().unwrap_or_default(), meta.size),
    };
    Listed { path: meta.location.into(), bytes: meta.size, version }
}

/// A storage that has a bad moment is asked again, and one that is gone does not hold up the server.
pub(crate) fn retries() -> RetryConfig {
    RetryConfig {
        backoff: BackoffConfig {
            init_backoff: Duration::from_millis(100),
            max_backoff: Duration::from_secs(2),
            base: 2.0,
        },
        max_retries: 3,
        retry_timeout: Duration::from_secs(30),
    }
}
