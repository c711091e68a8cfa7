//! A repository in a bucket or container.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::File,
    io::{self, Read},
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use futures_util::{StreamExt, TryStreamExt, stream};
use halimede_serving::{
    Error,
    remote::{LocalCopy, RemoteFile, RemoteRepository},
};
use parking_lot::Mutex;
use rustls::ClientConfig;
use tokio::{runtime::Handle, sync::watch, time::timeout};

use crate::{
    Address, Cache, Credentials,
    cache::Version,
    credentials::Environment,
    http::{Http, WAIT_MAX, chain},
    listing::Listings,
    store::{Listed, Store},
    tree::{self, Object},
};

/// Objects of one model that are fetched at once.
const FETCHES_MAX: usize = 8;
/// More than any configuration has.
const CONFIG_BYTES_MAX: u64 = 16 << 20;
/// More objects than this are no repository.
const OBJECTS_MAX: usize = 1_000_000;
/// How often the log says that an object still comes.
const TOLD_EVERY: Duration = Duration::from_secs(10);

/// What repositories need.
#[derive(Clone)]
pub struct Resources<'a> {
    /// Who the server is.
    pub credentials: &'a Credentials,
    /// The variables of the environment.
    pub environment: &'a dyn Fn(&str) -> Option<String>,
    /// Where copies are kept.
    pub cache: Arc<Cache>,
    /// Whom encrypted connections trust.
    pub tls: ClientConfig,
    /// What connections run on.
    pub runtime: Handle,
}

/// A repository in object storage.
#[derive(Debug)]
pub struct ObjectRepository {
    /// As it was given.
    given: String,
    address: Address,
    store: Store,
    cache: Arc<Cache>,
    runtime: Handle,
    /// Whether the server ends.
    is_closed: watch::Sender<bool>,
    /// The objects of the last listing of all models.
    seen: Mutex<BTreeSet<String>>,
}

impl ObjectRepository {
    /// The repository at an address. Asks nobody.
    ///
    /// # Errors
    /// The address has another form, or there are no credentials for it.
    pub fn new(given: &str, resources: &Resources<'_>) -> Result<Self, Error> {
        let address = Address::parse(given)?;
        let environment: Environment<'_> = resources.environment;
        let http = Http::new(resources.tls.clone(), Listings::new(given, address.prefix()));
        let store = Store::new(given, &address, resources.credentials, environment, http)?;
        Ok(Self {
            given: given.trim_end_matches('/').to_owned(),
            address,
            store,
            cache: resources.cache.clone(),
            runtime: resources.runtime.clone(),
            is_closed: watch::Sender::new(false),
            seen: Mutex::default(),
        })
    }

    /// Waits for `work`, unless the server ends first.
    fn wait_for<T>(&self, work: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
        let mut closed = self.is_closed.subscribe();
        self.runtime.block_on(async {
            tokio::select! {
                done = work => done,
                // The sender lives as long as this.
                _ = closed.wait_for(|is_closed| *is_closed) => Err(Error::unavailable("Server not ready")),
            }
        })
    }

    /// The whole name of what is below the repository.
    fn path(&self, name: &str) -> String {
        match (self.address.prefix(), name) {
            ("", name) => name.to_owned(),
            (prefix, "") => prefix.to_owned(),
            (prefix, name) => format!("{prefix}/{name}"),
        }
    }

    /// All objects below `name`, which is a model or empty.
    async fn objects(&self, name: &str) -> Result<Vec<Object>, ListError> {
        let folder = self.path(name);
        let mut listed = self.store.list(&folder);
        let mut objects = Vec::new();
        while let Some(next) = timeout(WAIT_MAX, listed.next()).await.map_err(|_| self.late())? {
            objects.extend(self.object(next.map_err(|error| self.not_listed(error))?));
            if objects.len() > OBJECTS_MAX {
                let text = format!("{} holds more than {OBJECTS_MAX} objects: name the path of the models", self.given);
                return Err(ListError::Failed(Error::invalid(text)));
            }
        }
        Ok(objects)
    }

    /// The folders and objects directly in the repository.
    async fn top(&self) -> Result<(Vec<String>, Vec<Object>), ListError> {
        let listed = timeout(WAIT_MAX, self.store.top(&self.path(""))).await;
        let listed = listed.map_err(|_| self.late())?.map_err(|error| self.not_listed(error))?;
        let name = |path: &String| Some(self.name(path.trim_end_matches('/'))?.to_owned());
        let names = listed.folders.iter().filter_map(name);
        let objects = listed.objects.into_iter().filter_map(|object| self.object(object));
        Ok((names.collect(), objects.collect()))
    }

    /// What is below the repository, without the path to it.
    fn name<'p>(&self, path: &'p str) -> Option<&'p str> {
        let prefix = self.address.prefix();
        let name = path.strip_prefix(prefix)?;
        let name = if prefix.is_empty() { name } else { name.strip_prefix('/')? };
        (!name.is_empty()).then_some(name)
    }

    fn object(&self, listed: Listed) -> Option<Object> {
        Some(Object { name: self.name(&listed.path)?.to_owned(), bytes: listed.bytes, version: listed.version })
    }

    /// The files of models, all or one. A name that is none spoils its own model alone.
    async fn files(&self, model: Option<&str>) -> Result<BTreeMap<String, Result<Vec<RemoteFile>, Error>>, Error> {
        match (self.objects(model.unwrap_or_default()).await, model) {
            (Ok(objects), _) => {
                if model.is_none() {
                    self.forget_gone(&objects);
                }
                Ok(tree::models(&self.given, objects))
            }
            (Err(ListError::Failed(error)), _) => Err(error),
            (Err(ListError::Name(error)), Some(model)) => Ok(BTreeMap::from([(model.to_owned(), Err(error))])),
            (Err(ListError::Name(_)), None) => {
                let (names, _) = self.top().await.map_err(ListError::into_error)?;
                let mut all = BTreeMap::new();
                for name in names {
                    match self.objects(&name).await {
                        Ok(objects) => all.extend(tree::models(&self.given, objects)),
                        Err(ListError::Name(error)) => drop(all.insert(name, Err(error))),
                        Err(ListError::Failed(error)) => return Err(error),
                    }
                }
                Ok(all)
            }
        }
    }

    /// Lets go of copies of objects that are no longer there.
    fn forget_gone(&self, objects: &[Object]) {
        let now: BTreeSet<String> = objects.iter().map(|object| self.object_address(&object.name)).collect();
        let mut seen = self.seen.lock();
        if *seen != now {
            self.cache.prune(&format!("{}/", self.address), &now);
            *seen = now;
        }
    }

    /// The name of an object that no object anywhere else has.
    fn object_address(&self, name: &str) -> String {
        format!("{}/{name}", self.address)
    }

    fn late(&self) -> ListError {
        let seconds = WAIT_MAX.as_secs();
        ListError::Failed(Error::internal(format!(
            "Failed to list objects of {}: no answer within {seconds} s",
            self.given
        )))
    }

    fn not_listed(&self, error: object_store::Error) -> ListError {
        let text = format!("Failed to list objects of {}: {}. {}", self.given, chain(&error), way_out(&error));
        match error {
            object_store::Error::InvalidPath { .. } => ListError::Name(Error::invalid(text)),
            _ => ListError::Failed(Error::internal(text + self.store.hint())),
        }
    }

    /// The file with an object's content, fetched if need be; and how much was.
    async fn localize(&self, model: &str, file: &RemoteFile) -> Result<(PathBuf, u64), Error> {
        let name = format!("{model}/{}", file.path);
        let wanted = Version { object: self.object_address(&name), version: file.version.clone(), bytes: file.bytes };
        if let Some(path) = self.cache.find(&wanted) {
            return Ok((path, 0));
        }
        let shown = format!("{}/{name}", self.given);
        let failed = |what: &str, message: &str, hint: &str| {
            Error::internal(format!(
                "Failed to get object at {shown} due to exception: {what}, error message: {message}. {hint}"
            ))
        };
        let not_got = |error: object_store::Error| failed(kind(&error), &chain(&error), way_out(&error));
        let not_kept = |error: io::Error| {
            let root = self.cache.root().display();
            failed("io", &format!("cannot be kept in {root}: {error}"), "Make room there, or name another folder.")
        };
        let late = || failed("timeout", &format!("no data within {} s", WAIT_MAX.as_secs()), RETRY);
        let changed = || failed("changed", "the object is another than a moment ago", "Load the model again.");

        let got = timeout(WAIT_MAX, self.store.get(&self.path(&name), &file.version)).await;
        let got = got.map_err(|_| late())?.map_err(not_got)?;
        if got.version.is_some_and(|version| version != file.version) {
            return Err(changed());
        }
        let mut incoming = self.cache.receive().map_err(not_kept)?;
        let mut parts = got.parts;
        let mut told = Instant::now();
        while let Some(part) = timeout(WAIT_MAX, parts.next()).await.map_err(|_| late())? {
            incoming.write(&part.map_err(not_got)?).map_err(not_kept)?;
            if incoming.bytes() > file.bytes {
                return Err(changed());
            }
            if told.elapsed() > TOLD_EVERY {
                told = Instant::now();
                tracing::info!("{shown} is being fetched: {} of {} bytes are here", incoming.bytes(), file.bytes);
            }
        }
        if incoming.bytes() != file.bytes {
            let message = format!("{} bytes of {}", incoming.bytes(), file.bytes);
            return Err(failed("incomplete", &message, RETRY));
        }
        let path = self.cache.keep(incoming, &wanted).map_err(not_kept)?;
        Ok((path, file.bytes))
    }
}

impl RemoteRepository for ObjectRepository {
    fn address(&self) -> &str {
        &self.given
    }

    fn exists(&self) -> Result<bool, Error> {
        self.wait_for(async {
            self.store.check().await?;
            let (names, objects) = self.top().await.or_else(|error| match error {
                // There is something, even if it has no name.
                ListError::Name(_) => Ok((vec![String::new()], Vec::new())),
                ListError::Failed(error) => Err(error),
            })?;
            // A bucket may be empty, a folder in it is only there with something inside.
            Ok(self.address.prefix().is_empty() || !names.is_empty() || !objects.is_empty())
        })
    }

    fn names(&self) -> Result<BTreeSet<String>, Error> {
        let (names, _) = self.wait_for(async { Ok(self.top().await?) })?;
        Ok(names.into_iter().filter(|name| tree::check_name(name).is_ok()).collect())
    }

    fn list(&self, model: Option<&str>) -> Result<BTreeMap<String, Result<Vec<RemoteFile>, Error>>, Error> {
        if model.is_some_and(|model| tree::check_name(model).is_err()) {
            return Ok(BTreeMap::new());
        }
        self.wait_for(self.files(model))
    }

    fn read(&self, model: &str, file: &RemoteFile) -> Result<Vec<u8>, Error> {
        let name = || format!("{}/{model}/{}", self.given, file.path);
        if file.bytes > CONFIG_BYTES_MAX {
            let text = format!("{} has {} bytes; {CONFIG_BYTES_MAX} are read at most", name(), file.bytes);
            return Err(Error::invalid(text));
        }
        let (path, _) = self.wait_for(self.localize(model, file))?;
        let mut bytes = Vec::new();
        File::open(path)
            .and_then(|file| file.take(CONFIG_BYTES_MAX).read_to_end(&mut bytes))
            .map_err(|error| Error::internal(format!("the copy of {} cannot be read: {error}", name())))?;
        Ok(bytes)
    }

    fn fetch(&self, model: &str, files: &[RemoteFile]) -> Result<LocalCopy, Error> {
        tree::check_name(model).map_err(|why| Error::invalid(format!("the model '{}' {why}", model.escape_debug())))?;
        let (objects, folders): (Vec<&RemoteFile>, Vec<&RemoteFile>) =
            files.iter().partition(|file| !file.path.ends_with('/'));
        let fetched: Vec<(&str, PathBuf, u64)> = self.wait_for(
            stream::iter(objects)
                .map(|file| async move {
                    let (path, bytes) = self.localize(model, file).await?;
                    Ok::<_, Error>((file.path.as_str(), path, bytes))
                })
                .buffer_unordered(FETCHES_MAX)
                .try_collect(),
        )?;
        let new = fetched.iter().filter(|(_, _, bytes)| *bytes > 0).count();
        let bytes: u64 = fetched.iter().map(|(_, _, bytes)| bytes).sum();
        tracing::info!("fetched {new} of {} objects of '{model}' from {}, {bytes} bytes", fetched.len(), self.given);
        let folders = folders.iter().map(|folder| (folder.path.as_str(), None));
        let files: Vec<(&str, Option<PathBuf>)> =
            fetched.into_iter().map(|(name, path, _)| (name, Some(path))).chain(folders).collect();
        let directory = self.cache.directory(model, &files).map_err(|error| {
            let root = self.cache.root().display();
            Error::internal(format!("the files of '{model}' cannot be put into {root}: {error}"))
        })?;
        Ok(LocalCopy { directory: directory.path.clone(), owner: Arc::new(directory) })
    }

    fn close(&self) {
        self.is_closed.send_replace(true);
    }
}

/// Why objects could not be listed.
enum ListError {
    /// One has a name that is none.
    Name(Error),
    /// Anything else.
    Failed(Error),
}

impl ListError {
    fn into_error(self) -> Error {
        match self {
            ListError::Name(error) | ListError::Failed(error) => error,
        }
    }
}

impl From<ListError> for Error {
    fn from(error: ListError) -> Self {
        error.into_error()
    }
}

const RETRY: &str = "Look whether the storage can be reached; loading the model again tries it again.";

fn kind(error: &object_store::Error) -> &'static str {
    match error {
        object_store::Error::NotFound { .. } => "NoSuchKey",
        object_store::Error::PermissionDenied { .. } => "AccessDenied",
        object_store::Error::Unauthenticated { .. } => "Unauthorized",
        _ => "request",
    }
}

fn way_out(error: &object_store::Error) -> &'static str {
    match error {
        object_store::Error::NotFound { .. } => "Look whether it is there, or was deleted a moment ago.",
        object_store::Error::PermissionDenied { .. } | object_store::Error::Unauthenticated { .. } => {
            "Give the server's credentials the right to list and read it."
        }
        object_store::Error::InvalidPath { .. } => "Rename or delete that object.",
        _ => RETRY,
    }
}
