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
        Self::begin(path, new_lock)
    }

    fn begin(path: PathBuf, lock: impl FnOnce(&Path) -> io::Result<File>) -> io::Result<Self> {
        private_directory().create(&path)?;
        match lock(&path) {
            Ok(lock) => Ok(Self { path, _lock: lock }),
            Err(error) => {
                // Without a lock nobody else would remove it.
                let _ = fs::remove_dir_all(&path);
                Err(error)
            }
        }
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

/// Makes the lock of a new directory, which is locked before it has its name: nobody finds the one without the other.
fn new_lock(directory: &Path) -> io::Result<File> {
    let own = directory.join(format!("{LOCK}.new"));
    let lock = File::create(&own)?;
    lock.lock()?;
    fs::rename(own, directory.join(LOCK))?;
    Ok(lock)
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
        if is_own_directory(&path) && open_lock(&path).is_ok_and(|lock| lock.try_lock().is_ok()) {
            // What cannot be removed is tried by the next one.
            let _ = fs::remove_dir_all(path);
        }
    }
}

/// Whether a directory, and no link to one, belongs to this user. In a directory that all may write to, whatever another user
/// makes under our names can be anything, and can change while it is looked at.
#[cfg(unix)]
fn is_own_directory(path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    fs::symlink_metadata(path)
        .is_ok_and(|metadata| metadata.is_dir() && metadata.uid() == rustix::process::geteuid().as_raw())
}

/// Whether it is a directory: the system knows no users.
#[cfg(not(unix))]
fn is_own_directory(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|metadata| metadata.is_dir())
}

/// Opens a directory's lock. Of a pipe nobody waits for the other end.
fn open_lock(directory: &Path) -> io::Result<File> {
    let mut options = File::options();
    options.read(true);
    #[cfg(unix)]
    {
        use rustix::fs::OFlags;
        use std::os::unix::fs::OpenOptionsExt;
        options.custom_flags((OFlags::NONBLOCK | OFlags::NOFOLLOW).bits().cast_signed());
    }
    options.open(directory.join(LOCK))
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
        #[cfg(unix)]
        let piped = {
            let piped = place.join(format!("{PREFIX}7-piped"));
            fs::create_dir(&piped).unwrap();
            assert!(process::Command::new("mkfifo").arg(piped.join(LOCK)).status().unwrap().success());
            std::os::unix::fs::symlink(&kept, place.join(format!("{PREFIX}7-linked"))).unwrap();
            piped
        };
        // As a process ends that is killed: its files are closed, and nothing else happens.
        left._lock.unlock().unwrap();
        remove_abandoned(&place, PREFIX);
        assert!(!left.path().exists());
        #[cfg(unix)]
        assert!(!piped.exists(), "a lock that is a pipe keeps nobody waiting, and is this user's to remove");
        assert!(used.path().exists() && kept.join(LOCK).exists() && without_lock.exists());
        drop((used, left));
        fs::remove_dir_all(place).unwrap();
    }

    #[test]
    fn nothing_is_left_of_one_that_cannot_be_locked() {
        let path = std::env::temp_dir().join(format!("halimede-unlocked-{}", process::id()));
        let begun = TemporaryDirectory::begin(path.clone(), |directory| {
            assert!(directory.is_dir());
            Err(io::Error::other("no file is free"))
        });
        assert_eq!(begun.unwrap_err().to_string(), "no file is free");
        assert!(!path.exists());
    }
}
