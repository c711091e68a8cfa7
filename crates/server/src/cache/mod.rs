//! The cache of responses that flags ask for.

mod availability;
mod packed;
mod redis;
mod resp;

use std::{collections::BTreeMap, sync::Arc};

use halimede_serving::{
    Error,
    cache::{LocalCache, ResponseCache},
};

use self::redis::RedisCache;

/// Makes the cache of `caches`, which are settings by the names of caches; `None` where there are none.
///
/// # Errors
/// A cache is unknown, there are two, or one cannot be made with its settings.
pub(crate) fn from_settings(
    caches: &BTreeMap<String, BTreeMap<String, String>>,
) -> Result<Option<Arc<dyn ResponseCache>>, Error> {
    if caches.len() > 1 {
        let text = "found multiple cache configurations, but only a single cache is currently supported";
        return Err(Error::invalid(text));
    }
    let Some((name, settings)) = caches.first_key_value() else { return Ok(None) };
    match name.as_str() {
        "local" => Ok(Some(Arc::new(local(settings)?))),
        "redis" => Ok(Some(Arc::new(RedisCache::connect(settings)?))),
        _ => Err(Error::invalid(format!(
            "unable to find 'libtritoncache_{name}.so' for cache. Caches of this server: local, redis"
        ))),
    }
}

fn local(settings: &BTreeMap<String, String>) -> Result<LocalCache, Error> {
    let failed = |why: String| Error::invalid(format!("Failed to initialize LocalCache: {why}"));
    check_names("LocalCache", settings, &["size"])?;
    let size = settings.get("size").ok_or_else(|| failed("config didn't contain a valid 'size' field.".to_owned()))?;
    let bytes: u64 = size.trim().parse().map_err(|_| failed(format!("'size' is no number of bytes: '{size}'")))?;
    tracing::info!("Response Cache is created with size {bytes}");
    Ok(LocalCache::new(bytes))
}

/// Refuses settings that a cache does not have: nobody would notice a slip otherwise.
fn check_names(cache: &str, settings: &BTreeMap<String, String>, known: &[&str]) -> Result<(), Error> {
    match settings.keys().find(|name| !known.contains(&name.as_str())) {
        None => Ok(()),
        Some(name) => Err(Error::invalid(format!(
            "Failed to initialize {cache}: it has no setting '{name}'; its settings are {}",
            known.join(", ")
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn make(settings: &[(&str, &str, &str)]) -> Result<Option<Arc<dyn ResponseCache>>, String> {
        let mut caches = BTreeMap::<String, BTreeMap<String, String>>::new();
        for (cache, name, value) in settings {
            caches.entry(cache.to_string()).or_default().insert(name.to_string(), value.to_string());
        }
        from_settings(&caches).map_err(|error| error.message)
    }

    #[test]
    fn wrong_settings_say_what_is_wrong() {
        assert!(make(&[]).unwrap().is_none());
        assert!(make(&[("local", "size", "100")]).unwrap().is_some());
        for (settings, expected) in [
            (&[("local", "size", "1"), ("redis", "key", "value")][..], "found multiple cache configurations"),
            (&[("other", "size", "1")], "unable to find 'libtritoncache_other.so' for cache"),
            (&[("local", "size", "-1")], "'size' is no number of bytes: '-1'"),
            (&[("local", "size", "1"), ("local", "sise", "1")], "it has no setting 'sise'; its settings are size"),
            (&[("redis", "port", "1")], "Must at a minimum specify 'host' and 'port'"),
            (&[("redis", "host", "a"), ("redis", "port", "1"), ("redis", "db", "x")], "'db' is no number: 'x'"),
        ] {
            let error = make(settings).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
    }
}
