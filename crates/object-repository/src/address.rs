//! Addresses of repositories, as Triton writes them.

use std::fmt;

use halimede_serving::Error;

/// Where a repository is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Address {
    /// `s3://bucket/path`, `s3://host:port/bucket/path`, `s3://https://host:port/bucket/path`.
    S3 {
        /// Scheme, host and port of a server that is not Amazon's.
        endpoint: Option<String>,
        /// The bucket.
        bucket: String,
        /// What the names of all objects of the repository begin with, without slashes around it.
        prefix: String,
    },
    /// `gs://bucket/path`.
    Gcs {
        /// The bucket.
        bucket: String,
        /// As above.
        prefix: String,
    },
    /// `as://account/container/path`.
    Azure {
        /// The storage account.
        account: String,
        /// The container.
        container: String,
        /// As above.
        prefix: String,
    },
}

/// What the host of an account ends with.
const AZURE_HOST: &str = ".blob.core.windows.net";

impl Address {
    /// Whether a path is the address of a repository in object storage, right or wrong.
    pub fn is_one(path: &str) -> bool {
        ["s3://", "gs://", "as://"].iter().any(|scheme| path.starts_with(scheme))
    }

    /// Reads an address.
    ///
    /// # Errors
    /// It has another form; the text names the right ones.
    pub fn parse(text: &str) -> Result<Self, Error> {
        match text.split_once("://") {
            Some(("s3", rest)) => parse_s3(text, rest),
            Some(("gs", rest)) => {
                let (bucket, prefix) = bucket_and_prefix(text, rest)?;
                Ok(Address::Gcs { bucket, prefix })
            }
            Some(("as", rest)) => parse_azure(text, rest),
            _ => Err(Error::invalid(format!(
                "'{text}' is no address of a repository in object storage: those begin with s3://, gs:// or as://"
            ))),
        }
    }

    /// The variable of the environment that names the folder for local copies.
    pub fn mount_variable(&self) -> &'static str {
        match self {
            Address::S3 { .. } => "TRITON_AWS_MOUNT_DIRECTORY",
            Address::Gcs { .. } => "TRITON_GCS_MOUNT_DIRECTORY",
            Address::Azure { .. } => "TRITON_AZURE_MOUNT_DIRECTORY",
        }
    }

    /// What the names of all objects of the repository begin with, without slashes around it.
    pub fn prefix(&self) -> &str {
        match self {
            Address::S3 { prefix, .. } | Address::Gcs { prefix, .. } | Address::Azure { prefix, .. } => prefix,
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::S3 { endpoint: None, bucket, .. } => write!(f, "s3://{bucket}")?,
            Address::S3 { endpoint: Some(endpoint), bucket, .. } => write!(f, "s3://{endpoint}/{bucket}")?,
            Address::Gcs { bucket, .. } => write!(f, "gs://{bucket}")?,
            Address::Azure { account, container, .. } => write!(f, "as://{account}/{container}")?,
        }
        match self.prefix() {
            "" => Ok(()),
            prefix => write!(f, "/{prefix}"),
        }
    }
}

fn parse_s3(text: &str, rest: &str) -> Result<Address, Error> {
    let rest = rest.trim_start_matches('/');
    let (scheme, rest) =
        match ["https://", "http://"].iter().find_map(|scheme| Some((*scheme, rest.strip_prefix(scheme)?))) {
            Some((scheme, rest)) => (Some(scheme), rest.trim_start_matches('/')),
            None => (None, rest),
        };
    let (first, behind) = rest.split_once('/').unwrap_or((rest, ""));
    let is_host = scheme.is_some() || first.contains(':');
    if !is_host {
        let (bucket, prefix) = bucket_and_prefix(text, rest)?;
        return Ok(Address::S3 { endpoint: None, bucket, prefix });
    }
    let (host, port) = first.split_once(':').map_or((first, None), |(host, port)| (host, Some(port)));
    let is_name = !host.is_empty() && host.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-.".contains(&byte));
    // A port of its own accord: without one the scheme decides.
    let is_port = port.is_none_or(|port| {
        port.bytes().all(|byte| byte.is_ascii_digit()) && port.parse::<u16>().is_ok_and(|port| port > 0)
    });
    if !is_name || !is_port {
        return Err(Error::invalid(format!(
            "Invalid S3 path: '{text}': '{first}' is no host with a port. Write s3://HOST:PORT/BUCKET/PATH or \
             s3://https://HOST:PORT/BUCKET/PATH for a server of your own, s3://BUCKET/PATH for Amazon's"
        )));
    }
    let (bucket, prefix) = bucket_and_prefix(text, behind)?;
    Ok(Address::S3 { endpoint: Some(format!("{}{first}", scheme.unwrap_or("http://"))), bucket, prefix })
}

fn parse_azure(text: &str, rest: &str) -> Result<Address, Error> {
    let wrong = |why: &str| {
        Error::internal(format!("Invalid azure storage path: {text}. {why} Write as://ACCOUNT/CONTAINER/PATH"))
    };
    if rest.contains(['?', '#']) {
        return Err(wrong("Nothing may follow the path: keys come from AZURE_STORAGE_KEY."));
    }
    let (host, rest) = rest.split_once('/').ok_or_else(|| wrong("It names no container."))?;
    let account = host.strip_suffix(AZURE_HOST).unwrap_or(host);
    if account.is_empty() || !account.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte)) {
        return Err(wrong("It names no storage account."));
    }
    let (container, prefix) = bucket_and_prefix(text, rest).map_err(|error| wrong(&format!("{}.", error.message)))?;
    Ok(Address::Azure { account: account.to_owned(), container, prefix })
}

/// The first part of a path and the others; slashes too many do not count.
fn bucket_and_prefix(text: &str, path: &str) -> Result<(String, String), Error> {
    let mut parts = path.split('/').filter(|part| !part.is_empty());
    let bucket = parts.next().ok_or_else(|| Error::internal(format!("No bucket name found in path: {text}")))?;
    if !bucket.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._".contains(&byte)) || bucket.starts_with('.') {
        return Err(Error::invalid(format!("Invalid bucket name: '{bucket}' in path: {text}")));
    }
    let parts: Vec<&str> = parts.collect();
    if let Some(part) = parts.iter().find(|part| [".", ".."].contains(part) || part.contains(char::is_control)) {
        return Err(Error::invalid(format!("Invalid path: {text}: '{}' cannot be part of it", part.escape_debug())));
    }
    Ok((bucket.to_owned(), parts.join("/")))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn s3(endpoint: Option<&str>, bucket: &str, prefix: &str) -> Address {
        let [bucket, prefix] = [bucket, prefix].map(str::to_owned);
        Address::S3 { endpoint: endpoint.map(str::to_owned), bucket, prefix }
    }

    #[test]
    fn the_forms_of_s3() {
        for (text, expected) in [
            ("s3://bucket", s3(None, "bucket", "")),
            ("s3://bucket/", s3(None, "bucket", "")),
            ("s3:///bucket//a///b/", s3(None, "bucket", "a/b")),
            ("s3://demo-bucket1.0/Model_repo-1.0", s3(None, "demo-bucket1.0", "Model_repo-1.0")),
            ("s3://localhost:4572/bucket/a", s3(Some("http://localhost:4572"), "bucket", "a")),
            ("s3://http://localhost:4572/bucket", s3(Some("http://localhost:4572"), "bucket", "")),
            ("s3://https://host.example:443/bucket/a b/c", s3(Some("https://host.example:443"), "bucket", "a b/c")),
            ("s3://https://host.example/bucket", s3(Some("https://host.example"), "bucket", "")),
        ] {
            assert_eq!(Address::parse(text).unwrap(), expected, "{text}");
        }
    }

    #[test]
    fn the_forms_of_google_and_azure() {
        let gcs = Address::Gcs { bucket: "bucket".to_owned(), prefix: "a/b".to_owned() };
        assert_eq!(Address::parse("gs://bucket//a/b/").unwrap(), gcs);
        for (text, prefix) in
            [("as://me/box/a/b", "a/b"), ("as://me.blob.core.windows.net/box", ""), ("as://me/box//", "")]
        {
            let (account, container, prefix) = ("me".to_owned(), "box".to_owned(), prefix.to_owned());
            assert_eq!(Address::parse(text).unwrap(), Address::Azure { account, container, prefix }, "{text}");
        }
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (text, expected) in [
            ("s3://", "No bucket name found in path: s3://"),
            ("s3://localhost:4572/", "No bucket name found in path: s3://localhost:4572/"),
            ("gs:///", "No bucket name found in path: gs:///"),
            ("s3://bucket/../other", "'..' cannot be part of it"),
            ("s3://..", "Invalid bucket name: '..'"),
            ("s3://bu@cket/x", "Invalid bucket name: 'bu@cket'"),
            ("s3://localhost:99999/bucket", "'localhost:99999' is no host with a port"),
            ("s3://key:secret@host/bucket", "is no host with a port"),
            ("as://account", "Invalid azure storage path: as://account. It names no container."),
            ("as://account/", "No bucket name found"),
            ("as://account/box?sv=secret", "Nothing may follow the path"),
            ("hdfs://x/y", "those begin with s3://, gs:// or as://"),
        ] {
            let error = Address::parse(text).unwrap_err().message;
            assert!(error.contains(expected), "{text}: {error}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in "(s3|gs|as)://(https?://)?[a-z:/.?@ \\\\%0-9-]{0,40}") {
            if let Ok(address) = Address::parse(&text) {
                prop_assert!(!address.prefix().split('/').any(|part| part == ".."));
                // What is printed is the same address again.
                prop_assert_eq!(Address::parse(&address.to_string()).unwrap(), address);
            }
        }

        #[test]
        fn no_text_does_harm(text in any::<String>()) {
            let _ = Address::parse(&text);
        }
    }
}
