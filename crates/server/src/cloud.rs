//! Model repositories in object storage: part of builds with the feature `cloud-repositories`.

use std::sync::Arc;

use halimede_serving::{Error, remote::RemoteRepository};
use tokio::runtime::Handle;

/// Whether this build has them.
pub(crate) const IS_BUILT: bool = cfg!(feature = "cloud-repositories");

/// Schemes of Triton's.
const SCHEMES: [&str; 3] = ["s3", "gs", "as"];

/// Why a repository cannot be served by a build that has them, or not.
pub(crate) fn refusal(address: &str, is_built: bool) -> Option<String> {
    let scheme = address.split("://").next().unwrap_or_default();
    match (SCHEMES.contains(&scheme), is_built) {
        (true, true) => None,
        (true, false) => Some(format!(
            "{scheme}:// file-system not supported. To enable, build with `cargo build --release --bin halimede --features \
             halimede-server/cloud-repositories`, or give a local directory"
        )),
        (false, _) => {
            Some(format!("{scheme}:// file-system not supported: there are s3://, gs://, as:// and local directories"))
        }
    }
}

/// The repositories at some addresses.
#[cfg(not(feature = "cloud-repositories"))]
pub(crate) fn open(_: &[String], _: &Handle) -> Result<Vec<Arc<dyn RemoteRepository>>, Error> {
    // Addresses were refused.
    Ok(Vec::new())
}

/// The repositories at some addresses.
#[cfg(feature = "cloud-repositories")]
pub(crate) fn open(addresses: &[String], runtime: &Handle) -> Result<Vec<Arc<dyn RemoteRepository>>, Error> {
    use std::{collections::BTreeMap, env, path::PathBuf};

    use halimede_object_repository::{Address, Credentials, ObjectRepository, Resources};

    if addresses.is_empty() {
        return Ok(Vec::new());
    }
    let environment = |name: &str| env::var(name).ok().filter(|value| !value.is_empty());
    let credentials = Credentials::read(&environment)?;
    let tls = crate::tls::client().map_err(Error::unavailable)?;
    let mut caches = BTreeMap::new();
    let mut repositories: Vec<Arc<dyn RemoteRepository>> = Vec::new();
    for address in addresses {
        let variable = Address::parse(address)?.mount_variable();
        let folder = environment(variable).map(PathBuf::from);
        let cache = match caches.get(&folder) {
            Some(cache) => Arc::clone(cache),
            None => {
                let cache = Arc::new(open_cache(folder.clone(), variable)?);
                caches.insert(folder, cache.clone());
                cache
            }
        };
        let (tls, runtime) = (tls.clone(), runtime.clone());
        let resources = Resources { credentials: &credentials, environment: &environment, cache, tls, runtime };
        repositories.push(Arc::new(ObjectRepository::new(address, &resources)?));
    }
    Ok(repositories)
}

/// The cache in the folder that a variable names, else in the user's cache, else in one that goes with the server.
#[cfg(feature = "cloud-repositories")]
fn open_cache(folder: Option<std::path::PathBuf>, variable: &str) -> Result<halimede_object_repository::Cache, Error> {
    use halimede_object_repository::Cache;
    use halimede_platform::directories;

    let failed = |place: &str, error: std::io::Error| {
        Error::internal(format!(
            "local copies of models cannot be kept in {place}: {error}. {variable} names another folder"
        ))
    };
    if let Some(folder) = folder {
        return Cache::open(&folder).map_err(|error| failed(&folder.display().to_string(), error));
    }
    if let Some(folder) = directories::cache().map(|cache| cache.join("objects")) {
        match Cache::open(&folder) {
            Ok(cache) => return Ok(cache),
            Err(error) => tracing::warn!("local copies of models are not kept: {}: {error}", folder.display()),
        }
    }
    Cache::temporary().map_err(|error| failed("the folder for temporary files", error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_build_without_them_says_how_to_get_them() {
        let text = refusal("s3://bucket/models", false).unwrap();
        assert!(text.starts_with("s3:// file-system not supported. To enable, build with"), "{text}");
        assert!(text.contains("halimede-server/cloud-repositories"));
        assert_eq!(refusal("s3://bucket/models", true), None);
        assert!(refusal("hdfs://x", true).unwrap().contains("there are s3://, gs://, as://"));
    }
}
