//! Directories for files that are there as long as this process.

use std::{
    fs::{self, File},
    io,
    path::{Path, PathBuf},
    process,
    sync::atomic::{AtomicU32, Ordering::Relaxed},
    time::{SystemTime, UNIX_EPOCH},
};

/// Locked as long as the directory's owner lives: whoever can lock it may remove the directory.
const LOCK: &str = "lock";

/// A directory that only this user can read; removed with its owner, or by [`remove_abandoned`] where the process was killed.
#[derive(Debug)]
pub struct TemporaryDirectory {
    path: PathBuf,
    /// Kept open for its lock.
    _lock: File,
}

impl TemporaryDirectory {
    /// A new one in `place`, whose name begins with `prefix`. It holds a file `lock`, and nothing else.
    ///
    /// # Errors
    /// It cannot be made.
    pub fn create(place: &Path, prefix: &str) -> io::Result<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let nanos = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
        let count = COUNT.fetch_add(1, Relaxed);
        let path = place.join(format!("{prefix}{}-{nanos:x}-{count}", process::id()));
        private_directory().create(&path)?;
        // Locked before it has its name: nobody finds the one without the other.
        let own = path.join(format!("{LOCK}.new"));
        let lock = File::create(&own)?;
        lock.lock()?;
        fs::rename(own, path.join(LOCK))?;
        Ok(Self { path, _lock: lock })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for TemporaryDirectory {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.path)
            && error.kind() != io::ErrorKind::NotFound
        {
            tracing::warn!("cannot remove {}: {error}", self.path.display());
        }
    }
}

/// Makes directories that other users cannot look into, where the system knows users.
pub fn private_directory() -> fs::DirBuilder {
    #[allow(unused_mut)] // Only Unix changes it.
    let mut builder = fs::DirBuilder::new();
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder
}

/// Removes the directories in `place` of processes that ended without doing so. Another user's stay, and whatever has no lock.
pub fn remove_abandoned(place: &Path, prefix: &str) {
    let Ok(entries) = fs::read_dir(place) else { return };
    let ours = entries.filter_map(Result::ok).filter(|entry| entry.file_name().to_string_lossy().starts_with(prefix));
    for path in ours.map(|entry| entry.path()) {
        let lock = File::open(path.join(LOCK));
        if lock.is_ok_and(|lock| lock.try_lock().is_ok()) {
            // What cannot be removed is tried by the next one.
            let _ = fs::remove_dir_all(path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PREFIX: &str = "halimede-test-";

    #[test]
    fn it_goes_with_its_owner() {
        let directory = TemporaryDirectory::create(&std::env::temp_dir(), PREFIX).unwrap();
        let path = directory.path().to_owned();
        fs::write(path.join("file"), "").unwrap();
        drop(directory);
        assert!(!path.exists());
    }

    #[cfg(unix)]
    #[test]
    fn other_users_cannot_look_into_it() {
        use std::os::unix::fs::PermissionsExt;
        let directory = TemporaryDirectory::create(&std::env::temp_dir(), PREFIX).unwrap();
        assert_eq!(fs::metadata(directory.path()).unwrap().permissions().mode() & 0o077, 0);
    }

    #[test]
    fn what_a_process_left_is_removed_and_what_is_in_use_is_not() {
        let place = std::env::temp_dir().join(format!("halimede-abandoned-{}", process::id()));
        fs::create_dir(&place).unwrap();
        let used = TemporaryDirectory::create(&place, PREFIX).unwrap();
        let left = TemporaryDirectory::create(&place, PREFIX).unwrap();
        let kept = place.join("somebody-else");
        fs::create_dir(&kept).unwrap();
        fs::write(kept.join(LOCK), "").unwrap();
        let without_lock = place.join(format!("{PREFIX}7-begun"));
        fs::create_dir(&without_lock).unwrap();
        // As a process ends that is killed: its files are closed, and nothing else happens.
        left._lock.unlock().unwrap();
        remove_abandoned(&place, PREFIX);
        assert!(!left.path().exists());
        assert!(used.path().exists() && kept.exists() && without_lock.exists());
        drop((used, left));
        fs::remove_dir_all(place).unwrap();
    }
}
