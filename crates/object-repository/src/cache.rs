//! Copies of objects on this machine, kept by the hash of their content.
//!
//! Three folders lie in the cache. `content` has one file for each content, named by its SHA-256. `index` has one small file for
//! each object, which says under which version (ETag) it had which content. `models` has a folder for each server
//! that runs, with the directories that its models are loaded from: links to files of `content`. Several servers may
//! share a cache: files appear complete, by renaming, and one that is gone is fetched again.

use std::{
    collections::BTreeSet,
    fmt::Write as _,
    fs::{self, DirBuilder, File, Permissions},
    io::{self, Read, Write},
    os::unix::fs::{DirBuilderExt, PermissionsExt},
    path::{Path, PathBuf},
    process,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// Locked as long as a server lives: whoever can lock it may remove its folder.
const LOCK: &str = "lock";
/// Content that nobody refers to is kept so long: another server may be about to.
const UNUSED_MAX: Duration = Duration::from_secs(600);

/// Copies of objects that were fetched.
#[derive(Debug)]
pub struct Cache {
    root: PathBuf,
    /// The folder of this server in `models`.
    own: PathBuf,
    _lock: File,
    /// Whether the cache goes with the server.
    is_temporary: bool,
    /// Names of what is made here.
    next: AtomicU64,
}

/// An object at a certain time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Version {
    /// Its whole name.
    pub object: String,
    pub version: String,
    pub bytes: u64,
}

/// What a file of `index` says.
#[derive(Serialize, Deserialize)]
struct Entry {
    #[serde(flatten)]
    version: Version,
    /// SHA-256 of the content, in hexadecimal digits.
    content: String,
}

/// Content that is being fetched.
#[derive(Debug)]
pub(crate) struct Incoming {
    path: PathBuf,
    file: File,
    hash: Sha256,
    bytes: u64,
}

/// The directory of a model, removed with its last owner.
#[derive(Debug)]
pub(crate) struct ModelDirectory {
    /// What is removed.
    folder: PathBuf,
    /// What the model is loaded from.
    pub path: PathBuf,
}

impl Cache {
    /// The cache in a folder, which is made where there is none.
    ///
    /// # Errors
    /// The folder cannot be written.
    pub fn open(root: &Path) -> io::Result<Self> {
        Self::new(root.to_owned(), false)
    }

    /// A cache that goes with the server, for one that has no place to keep anything.
    ///
    /// # Errors
    /// The folder for temporary files cannot be written.
    pub fn temporary() -> io::Result<Self> {
        let root = std::env::temp_dir().join(format!("halimede-objects-{}", unique()));
        // Nobody else may have made it.
        private().create(&root)?;
        Self::new(root, true)
    }

    fn new(root: PathBuf, is_temporary: bool) -> io::Result<Self> {
        for folder in ["content", "index", "models"] {
            private().recursive(true).create(root.join(folder))?;
        }
        let models = root.join("models");
        remove_abandoned(&models);
        let own = models.join(unique());
        private().create(&own)?;
        // Locked before it has its name: nobody finds the one without the other.
        let new = own.join(format!("{LOCK}.new"));
        let lock = File::create(&new)?;
        lock.lock()?;
        fs::rename(new, own.join(LOCK))?;
        Ok(Self { root, own, _lock: lock, is_temporary, next: AtomicU64::new(0) })
    }

    /// The file with an object's content, if it was fetched before and is as it was then.
    pub(crate) fn find(&self, version: &Version) -> Option<PathBuf> {
        let entry = read_entry(&self.entry(&version.object))?;
        if entry.version != *version {
            return None;
        }
        let path = self.content(&entry.content)?;
        match hash_of(&path) {
            Ok(hash) if hash == entry.content => Some(path),
            Ok(_) => {
                tracing::warn!("the copy of {} in {} is damaged: it is fetched again", version.object, path.display());
                let _ = fs::remove_file(path);
                None
            }
            Err(_) => None,
        }
    }

    /// Begins to fetch an object.
    pub(crate) fn receive(&self) -> io::Result<Incoming> {
        let path = self.own.join(format!("incoming-{}", self.next.fetch_add(1, Relaxed)));
        let file = File::create_new(&path)?;
        Ok(Incoming { path, file, hash: Sha256::new(), bytes: 0 })
    }

    /// Keeps what was fetched; the file with it.
    pub(crate) fn keep(&self, incoming: Incoming, version: &Version) -> io::Result<PathBuf> {
        let content = hex(&incoming.hash.clone().finalize());
        let path = self.root.join("content").join(&content);
        // Written once, for every model that has it.
        incoming.file.set_permissions(Permissions::from_mode(0o400))?;
        fs::rename(&incoming.path, &path)?;
        let entry = serde_json::to_vec(&Entry { version: version.clone(), content })?;
        let new = self.own.join(format!("entry-{}", self.next.fetch_add(1, Relaxed)));
        fs::write(&new, entry)?;
        fs::rename(new, self.entry(&version.object))?;
        Ok(path)
    }

    /// A directory for a model, with files by their paths below it.
    pub(crate) fn directory(&self, model: &str, files: &[(&str, Option<PathBuf>)]) -> io::Result<ModelDirectory> {
        let folder = self.own.join(self.next.fetch_add(1, Relaxed).to_string());
        private().create(&folder)?;
        let directory = ModelDirectory { path: folder.join(model), folder };
        private().create(&directory.path)?;
        for (path, content) in files {
            let target = directory.path.join(path);
            match content {
                None => private().recursive(true).create(target)?,
                Some(content) => {
                    if let Some(parent) = target.parent() {
                        private().recursive(true).create(parent)?;
                    }
                    // Where files cannot have two names they are copied.
                    if fs::hard_link(content, &target).is_err() {
                        fs::copy(content, &target)?;
                    }
                }
            }
        }
        Ok(directory)
    }

    /// Forgets the objects whose names begin with `prefix` and are not among `live`, and removes content that no object has.
    pub(crate) fn prune(&self, prefix: &str, live: &BTreeSet<String>) {
        let mut used = BTreeSet::new();
        for path in paths(&self.root.join("index")) {
            match read_entry(&path) {
                Some(entry) if !entry.version.object.starts_with(prefix) || live.contains(&entry.version.object) => {
                    used.insert(entry.content);
                }
                _ => drop(fs::remove_file(path)),
            }
        }
        let is_old = |path: &Path| {
            let modified = fs::metadata(path).and_then(|metadata| metadata.modified());
            modified.is_ok_and(|time| time.elapsed().is_ok_and(|age| age > UNUSED_MAX))
        };
        for path in paths(&self.root.join("content")) {
            let is_used = path.file_name().and_then(|name| name.to_str()).is_some_and(|name| used.contains(name));
            if !is_used && is_old(&path) {
                let _ = fs::remove_file(path);
            }
        }
    }

    /// Where it is.
    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    fn entry(&self, object: &str) -> PathBuf {
        self.root.join("index").join(hex(&Sha256::digest(object)))
    }

    /// `None` where an entry holds something else than a hash.
    fn content(&self, hash: &str) -> Option<PathBuf> {
        let is_hash = hash.len() == 64 && hash.bytes().all(|byte| byte.is_ascii_hexdigit());
        is_hash.then(|| self.root.join("content").join(hash))
    }
}

impl Drop for Cache {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(if self.is_temporary { &self.root } else { &self.own });
    }
}

impl Incoming {
    pub fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.hash.update(bytes);
        self.bytes += bytes.len() as u64;
        self.file.write_all(bytes)
    }

    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl Drop for Incoming {
    fn drop(&mut self) {
        // It has another name where it was kept.
        let _ = fs::remove_file(&self.path);
    }
}

impl Drop for ModelDirectory {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.folder) {
            tracing::warn!("cannot remove {}: {error}", self.folder.display());
        }
    }
}

/// Makes folders that only this user can look into.
fn private() -> DirBuilder {
    let mut builder = DirBuilder::new();
    builder.mode(0o700);
    builder
}

/// A name that no other server has.
fn unique() -> String {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let nanos = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
    format!("{}-{nanos:x}-{}", process::id(), COUNT.fetch_add(1, Relaxed))
}

fn paths(folder: &Path) -> impl Iterator<Item = PathBuf> {
    fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path())
}

/// Removes the folders of servers that ended without doing so.
fn remove_abandoned(models: &Path) {
    for path in paths(models) {
        let lock = File::open(path.join(LOCK));
        if lock.is_ok_and(|lock| lock.try_lock().is_ok()) {
            let _ = fs::remove_dir_all(path);
        }
    }
}

fn read_entry(path: &Path) -> Option<Entry> {
    serde_json::from_slice(&fs::read(path).ok()?).ok()
}

fn hash_of(path: &Path) -> io::Result<String> {
    let mut file = File::open(path)?;
    let mut hash = Sha256::new();
    let mut buffer = vec![0; 1 << 18];
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok(hex(&hash.finalize())),
            count => hash.update(&buffer[..count]),
        }
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        // Writing into a string never fails.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn version(object: &str, version: &str) -> Version {
        Version { object: object.to_owned(), version: version.to_owned(), bytes: 5 }
    }

    fn kept(cache: &Cache, version: &Version, content: &[u8]) -> PathBuf {
        let mut incoming = cache.receive().unwrap();
        content.chunks(3).for_each(|part| incoming.write(part).unwrap());
        assert_eq!(incoming.bytes(), content.len() as u64);
        cache.keep(incoming, version).unwrap()
    }

    /// A cache in a folder that goes with the test, even where a second one opens it.
    fn folder() -> (Cache, PathBuf) {
        let cache = Cache::temporary().unwrap();
        let root = cache.root().to_owned();
        (cache, root)
    }

    #[test]
    fn content_is_found_by_object_and_version() {
        let (cache, root) = folder();
        let first = version("s3://b/m/1", "v1");
        assert_eq!(cache.find(&first), None);
        let path = kept(&cache, &first, b"hello");
        assert_eq!(cache.find(&first), Some(path.clone()));
        assert_eq!(fs::read(&path).unwrap(), b"hello");
        for other in [version("s3://b/m/1", "v2"), version("s3://b/m/2", "v1"), Version { bytes: 6, ..first.clone() }] {
            assert_eq!(cache.find(&other), None);
        }
        // Another server finds it too.
        let second = Cache::open(&root).unwrap();
        assert_eq!(second.find(&first), Some(path));
    }

    #[test]
    fn a_damaged_copy_is_none() {
        let (cache, root) = folder();
        let object = version("s3://b/m/1", "v1");
        for damage in [&b"hallo"[..], b"hell", b""] {
            let path = kept(&cache, &object, b"hello");
            fs::remove_file(&path).unwrap();
            fs::write(&path, damage).unwrap();
            assert_eq!(cache.find(&object), None);
            assert!(!path.exists());
        }
        kept(&cache, &object, b"hello");
        for entry in paths(&root.join("index")) {
            fs::write(entry, r#"{"object":"s3://b/m/1","version":"v1","bytes":5,"content":"../../secret"}"#).unwrap();
        }
        assert_eq!(cache.find(&object), None);
    }

    #[test]
    fn a_model_keeps_its_files_until_it_goes() {
        let (cache, root) = folder();
        let object = version("s3://b/m/1/a", "v1");
        let path = kept(&cache, &object, b"hello");
        let directory = cache.directory("m", &[("1/a", Some(path.clone())), ("2/", None)]).unwrap();
        let copy = directory.path.join("1/a");
        assert!(directory.path.ends_with("m") && directory.path.join("2").is_dir());
        // What changes later changes nothing here.
        let path_2 = kept(&cache, &version("s3://b/m/1/a", "v2"), b"other");
        fs::remove_file(path).unwrap();
        assert_eq!((fs::read(&copy).unwrap(), fs::read(path_2).unwrap()), (b"hello".to_vec(), b"other".to_vec()));
        drop(directory);
        assert!(!copy.exists());
        drop(cache);
        assert!(!root.exists());
    }

    #[test]
    fn what_is_gone_is_forgotten() {
        let (cache, _root) = folder();
        let names = ["s3://b/x/a", "s3://b/x/b", "s3://b/xy/c"];
        let contents: Vec<PathBuf> =
            names.iter().map(|name| kept(&cache, &version(name, "v"), name.as_bytes())).collect();
        let long_ago = SystemTime::now() - 2 * UNUSED_MAX;
        for path in &contents {
            fs::set_permissions(path, Permissions::from_mode(0o600)).unwrap();
            File::options().write(true).open(path).unwrap().set_modified(long_ago).unwrap();
        }
        cache.prune("s3://b/x/", &BTreeSet::from([names[0].to_owned()]));
        assert_eq!(contents.iter().map(|path| path.exists()).collect::<Vec<_>>(), [true, false, true]);
        assert!(cache.find(&version(names[2], "v")).is_some());
        // What was just fetched stays: its entry may be on the way.
        let fresh = kept(&cache, &version(names[1], "v"), b"fresh");
        cache.prune("s3://b/x/", &BTreeSet::new());
        assert!(fresh.exists() && cache.find(&version(names[1], "v")).is_none());
    }

    #[test]
    fn what_a_server_left_is_removed_by_the_next() {
        let (cache, root) = folder();
        let left = Cache::open(&root).unwrap();
        let own = left.own.clone();
        // As a process ends that is killed: its files are closed, and nothing else happens.
        left._lock.unlock().unwrap();
        std::mem::forget(left);
        let _next = Cache::open(&root).unwrap();
        assert!(!own.exists() && cache.own.exists());
    }

    #[test]
    fn half_of_an_object_leaves_nothing() {
        let (cache, _root) = folder();
        let mut incoming = cache.receive().unwrap();
        incoming.write(b"half").unwrap();
        let path = incoming.path.clone();
        assert!(path.exists());
        drop(incoming);
        assert!(!path.exists());
    }
}
