//! Who the server is to the storage: from a file, or from the environment.

use std::{collections::BTreeMap, fmt, fs, path::PathBuf};

use halimede_serving::Error;
use serde::Deserialize;

use crate::profile;

/// Names the file with credentials for several places.
const FILE: &str = "TRITON_CLOUD_CREDENTIAL_PATH";

/// Credentials by what addresses begin with, the longest first.
#[derive(Clone, Default)]
pub struct Credentials {
    s3: Vec<(String, S3Credential)>,
    gcs: Vec<(String, GcsCredential)>,
    azure: Vec<(String, AzureCredential)>,
}

/// For S3. What is empty is not given.
#[derive(Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(crate) struct S3Credential {
    pub secret_key: String,
    pub key_id: String,
    pub region: String,
    pub session_token: String,
    pub profile: String,
    #[serde(flatten)]
    unknown: BTreeMap<String, serde_json::Value>,
}

/// For Google: the path of a file, or empty.
#[derive(Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
pub(crate) struct GcsCredential {
    pub path: String,
}

/// For Azure. What is empty is not given.
#[derive(Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(crate) struct AzureCredential {
    pub account_str: String,
    pub account_key: String,
    pub auth_type: String,
    pub client_id: String,
    #[serde(flatten)]
    unknown: BTreeMap<String, serde_json::Value>,
}

/// The file as it is written.
#[derive(Deserialize)]
struct File {
    #[serde(default)]
    s3: BTreeMap<String, S3Credential>,
    #[serde(default)]
    gs: BTreeMap<String, GcsCredential>,
    #[serde(default, rename = "as")]
    azure: BTreeMap<String, AzureCredential>,
    #[serde(flatten)]
    unknown: BTreeMap<String, serde_json::Value>,
}

/// Variables of the environment, by their names.
pub(crate) type Environment<'a> = &'a dyn Fn(&str) -> Option<String>;

impl Credentials {
    /// Those of the file that `TRITON_CLOUD_CREDENTIAL_PATH` names, or of the environment where it names none.
    ///
    /// # Errors
    /// The file cannot be read, or holds something else.
    pub fn read(environment: Environment<'_>) -> Result<Self, Error> {
        let Some(path) = environment(FILE) else { return Ok(Self::from_environment(environment)) };
        let text = fs::read_to_string(&path)
            .map_err(|error| Error::internal(format!("{FILE}: failed to open text file for read {path}: {error}")))?;
        Self::parse(&text).map_err(|error| Error::internal(format!("{FILE}: {path}: {error}")))
    }

    fn from_environment(environment: Environment<'_>) -> Self {
        let get = |name: &str| environment(name).unwrap_or_default();
        let s3 = S3Credential {
            secret_key: get("AWS_SECRET_ACCESS_KEY"),
            key_id: get("AWS_ACCESS_KEY_ID"),
            region: environment("AWS_DEFAULT_REGION").unwrap_or_else(|| get("AWS_REGION")),
            session_token: get("AWS_SESSION_TOKEN"),
            profile: get("AWS_PROFILE"),
            ..S3Credential::default()
        };
        let gcs = GcsCredential { path: get("GOOGLE_APPLICATION_CREDENTIALS") };
        let azure = AzureCredential {
            account_str: get("AZURE_STORAGE_ACCOUNT"),
            account_key: get("AZURE_STORAGE_KEY"),
            auth_type: get("AZURE_STORAGE_AUTH_TYPE"),
            client_id: get("AZURE_STORAGE_CLIENT_ID"),
            ..AzureCredential::default()
        };
        let everywhere = String::new;
        Self { s3: vec![(everywhere(), s3)], gcs: vec![(everywhere(), gcs)], azure: vec![(everywhere(), azure)] }
    }

    /// Reads the text of the file. What it does not know is named in the log; errors name a place and no value.
    fn parse(text: &str) -> Result<Self, String> {
        let file: File = serde_json::from_str(text).map_err(|error| {
            // The words of an error may hold what stands there, which is a secret.
            let (line, column) = (error.line(), error.column());
            let what = if error.is_data() { "something else than expected" } else { "no JSON" };
            format!(
                "{what} at line {line} column {column}. The form is {{\"s3\": {{\"s3://BUCKET\": {{\"key_id\": .., \
                 \"secret_key\": ..}}}}, \"gs\": {{\"\": \"FILE\"}}, \"as\": {{\"\": {{\"account_str\": .., \
                 \"account_key\": ..}}}}}}"
            )
        })?;
        let s3 = file.s3.iter().flat_map(|(name, one)| one.unknown.keys().map(move |key| (name, key)));
        let azure = file.azure.iter().flat_map(|(name, one)| one.unknown.keys().map(move |key| (name, key)));
        for (name, key) in s3.chain(azure) {
            tracing::warn!("{FILE}: '{key}' of '{name}' is unknown and has no effect");
        }
        for key in file.unknown.keys() {
            tracing::warn!("{FILE}: '{key}' is unknown and has no effect: there are 's3', 'gs' and 'as'");
        }
        Ok(Self { s3: longest_first(file.s3), gcs: longest_first(file.gs), azure: longest_first(file.azure) })
    }

    pub(crate) fn s3(&self, address: &str) -> Result<&S3Credential, Error> {
        find(&self.s3, address)
    }

    pub(crate) fn gcs(&self, address: &str) -> Result<&GcsCredential, Error> {
        find(&self.gcs, address)
    }

    pub(crate) fn azure(&self, address: &str) -> Result<&AzureCredential, Error> {
        find(&self.azure, address)
    }
}

/// Nobody prints them by mistake.
impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials").finish_non_exhaustive()
    }
}

fn longest_first<T>(all: BTreeMap<String, T>) -> Vec<(String, T)> {
    let mut all: Vec<(String, T)> = all.into_iter().collect();
    all.sort_by_key(|(name, _)| std::cmp::Reverse(name.len()));
    all
}

/// The credential whose name is the longest that `address` begins with.
fn find<'a, T>(all: &'a [(String, T)], address: &str) -> Result<&'a T, Error> {
    let found = all.iter().find(|(name, _)| address.starts_with(name.as_str()));
    found.map(|(_, credential)| credential).ok_or_else(|| {
        Error::not_found(format!(
            "Cannot match credential for path  {address}: add one named \"\" or with the beginning of the path to the \
             file that {FILE} names"
        ))
    })
}

impl S3Credential {
    /// Whether it holds keys.
    pub fn has_keys(&self) -> bool {
        !self.secret_key.is_empty() && !self.key_id.is_empty()
    }

    /// Whether it holds one of two that go together.
    pub fn has_half_a_key(&self) -> bool {
        self.secret_key.is_empty() != self.key_id.is_empty()
    }

    /// The same with what the files of Amazon's command line say, where there are no keys.
    ///
    /// # Errors
    /// There is no such profile.
    pub fn with_profile(&self, environment: Environment<'_>) -> Result<Self, Error> {
        if self.has_keys() {
            return Ok(self.clone());
        }
        let path = |variable: &str, name: &str| {
            environment(variable)
                .map(PathBuf::from)
                .or_else(|| Some(PathBuf::from(environment("HOME")?).join(".aws").join(name)))
        };
        let read = |path: Option<PathBuf>| path.and_then(|path| fs::read_to_string(path).ok()).unwrap_or_default();
        let config = read(path("AWS_CONFIG_FILE", "config"));
        let credentials = read(path("AWS_SHARED_CREDENTIALS_FILE", "credentials"));
        let name = if self.profile.is_empty() { "default" } else { &self.profile };
        let Some(settings) = profile::settings(&config, &credentials, name) else {
            return match self.profile.is_empty() {
                true => Ok(self.clone()),
                false => Err(Error::invalid(format!(
                    "there is no AWS profile '{name}' in ~/.aws/credentials and ~/.aws/config: `aws configure --profile \
                     {name}` makes one"
                ))),
            };
        };
        let setting = |key: &str| settings.get(key).cloned().unwrap_or_default();
        let found = Self {
            key_id: setting("aws_access_key_id"),
            secret_key: setting("aws_secret_access_key"),
            session_token: setting("aws_session_token"),
            region: if self.region.is_empty() { setting("region") } else { self.region.clone() },
            ..self.clone()
        };
        if !self.profile.is_empty() && !found.has_keys() {
            tracing::warn!(
                "the AWS profile '{name}' has no aws_access_key_id with an aws_secret_access_key: roles, single sign-on and \
                 programs of profiles are not read"
            );
        }
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const TEXT: &str = r#"{
        "gs": {"": "/gcs.json", "gs://gcs-bucket-002": "/gcs-2.json"},
        "s3": {
            "": {"secret_key": "S", "key_id": "K", "region": "R", "session_token": "", "profile": ""},
            "s3://bucket": {"secret_key": "S1", "key_id": "K1"},
            "s3://bucket-002": {"secret_key": "S2", "key_id": "K2", "note": "unknown"}
        },
        "as": {"as://Account-002/Container": {"account_str": "A", "account_key": "AK"}}
    }"#;

    #[test]
    fn the_longest_name_wins() {
        let all = Credentials::parse(TEXT).unwrap();
        for (address, key) in [("s3://other/x", "K"), ("s3://bucket/x", "K1"), ("s3://bucket-002", "K2")] {
            assert_eq!(all.s3(address).unwrap().key_id, key, "{address}");
        }
        assert_eq!(all.gcs("gs://gcs-bucket-002/models").unwrap().path, "/gcs-2.json");
        assert_eq!(all.gcs("gs://any").unwrap().path, "/gcs.json");
        assert_eq!(all.azure("as://Account-002/Container/x").unwrap().account_key, "AK");
        let error = all.azure("as://Account-001/Container").err().unwrap().message;
        assert!(error.starts_with("Cannot match credential for path  as://Account-001/Container"), "{error}");
    }

    #[test]
    fn the_environment_counts_without_a_file() {
        let environment = |name: &str| match name {
            "AWS_ACCESS_KEY_ID" => Some("K".to_owned()),
            "AWS_REGION" => Some("R".to_owned()),
            "AZURE_STORAGE_ACCOUNT" => Some("A".to_owned()),
            "GOOGLE_APPLICATION_CREDENTIALS" => Some("/g.json".to_owned()),
            _ => None,
        };
        let all = Credentials::read(&environment).unwrap();
        let s3 = all.s3("s3://x").unwrap();
        assert_eq!((&*s3.key_id, &*s3.region, s3.has_keys()), ("K", "R", false));
        assert_eq!(all.azure("as://x/y").unwrap().account_str, "A");
        assert_eq!(all.gcs("gs://x").unwrap().path, "/g.json");
        let missing = |name: &str| (name == FILE).then(|| "/no/such/file".to_owned());
        let error = Credentials::read(&missing).unwrap_err().message;
        assert!(error.contains("failed to open text file for read /no/such/file"), "{error}");
    }

    #[test]
    fn errors_hold_no_secret() {
        for text in
            [r#"{"s3": {"": "topsecret"}}"#, r#"{"s3": {"": {"key_id": ["topsecret"]}}}"#, r#"{"as": topsecret}"#]
        {
            let error = Credentials::parse(text).unwrap_err();
            assert!(error.contains("at line 1 column") && !error.contains("topsecret"), "{error}");
        }
        assert!(!format!("{:?}", Credentials::parse(TEXT)).contains("K2"));
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in "[\\{\\}\\[\\]\":,a-z3 ]{0,60}") {
            let _ = Credentials::parse(&text);
        }
    }
}
