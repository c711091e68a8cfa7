//! The scripts that run inside the interpreter: part of the program, and unpacked for it.

use std::{
    fs::{self, DirBuilder, File},
    io,
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
    process,
    sync::Arc,
    time::{SystemTime, UNIX_EPOCH},
};

use halimede_serving::Error;
use parking_lot::Mutex;

/// What names of directories begin with.
const PREFIX: &str = "halimede-python-";
/// Locked as long as the directory's owner lives: whoever can lock it may remove the directory.
const LOCK: &str = "lock";

/// The script that the interpreter is started with.
const START: &str = "start.py";

macro_rules! scripts {
    ($($path:literal),* $(,)?) => {
        [$(($path, include_str!(concat!("../python/", $path)))),*]
    };
}

/// Every script, by its path.
const SCRIPTS: [(&str, &str); 14] = scripts![
    "start.py",
    "triton_python_backend_utils.py",
    "c_python_backend_utils.py",
    "halimede_host/__init__.py",
    "halimede_host/arguments.py",
    "halimede_host/channel.py",
    "halimede_host/dlpack.py",
    "halimede_host/host.py",
    "halimede_host/logger.py",
    "halimede_host/messages.py",
    "halimede_host/metrics.py",
    "halimede_host/model_config.py",
    "halimede_host/models.py",
    "halimede_host/tensor.py",
];

/// Unpacks the scripts when they are wanted for the first time.
#[derive(Debug, Default)]
pub(crate) struct Files(Mutex<Option<Arc<Directory>>>);

/// A directory that only this user can read, with the scripts; removed with its last owner, or by the next server where
/// the process ended before.
#[derive(Debug)]
pub(crate) struct Directory {
    path: PathBuf,
    /// Kept open for its lock.
    _lock: File,
}

impl Files {
    /// Where the scripts are.
    pub fn unpacked(&self) -> Result<Arc<Directory>, Error> {
        let mut directory = self.0.lock();
        if let Some(directory) = &*directory {
            return Ok(directory.clone());
        }
        let place = std::env::temp_dir();
        remove_abandoned(&place);
        let unpacked = Directory::unpack(&place)
            .map_err(|error| Error::internal(format!("cannot unpack the scripts of the python backend: {error}")))?;
        Ok(directory.insert(Arc::new(unpacked)).clone())
    }
}

impl Drop for Files {
    /// The backend goes when the server ends, on which a process that is just being started has no say.
    fn drop(&mut self) {
        if let Some(directory) = self.0.get_mut() {
            let _ = fs::remove_dir_all(&directory.path);
        }
    }
}

impl Directory {
    fn unpack(place: &Path) -> io::Result<Self> {
        let nanos = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
        let path = place.join(format!("{PREFIX}{}-{nanos:x}", process::id()));
        let private = |path: &Path| DirBuilder::new().mode(0o700).create(path);
        private(&path)?;
        // Locked before it has its name: nobody finds the one without the other.
        let own = path.join(format!("{LOCK}.new"));
        let lock = File::create(&own)?;
        lock.lock()?;
        fs::rename(own, path.join(LOCK))?;
        let directory = Self { path, _lock: lock };
        private(&directory.path.join("halimede_host"))?;
        for (script, text) in SCRIPTS {
            fs::write(directory.path.join(script), text)?;
        }
        Ok(directory)
    }

    /// Where environments of models are unpacked; they go with the directory.
    pub fn environments(&self) -> PathBuf {
        self.path.join("environments")
    }

    /// The script to start the interpreter with.
    pub fn start(&self) -> PathBuf {
        self.path.join(START)
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        // The interpreter may have put its caches there; what cannot be removed is a few kilobytes.
        let _ = fs::remove_dir_all(&self.path);
    }
}

/// Removes the directories of processes that ended without doing so. Another user's stay, and whatever has no lock.
fn remove_abandoned(place: &Path) {
    let Ok(entries) = fs::read_dir(place) else { return };
    let ours = entries.filter_map(Result::ok).filter(|entry| entry.file_name().to_string_lossy().starts_with(PREFIX));
    for path in ours.map(|entry| entry.path()) {
        let lock = File::open(path.join(LOCK));
        if lock.is_ok_and(|lock| lock.try_lock().is_ok()) {
            let _ = fs::remove_dir_all(path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scripts_are_unpacked_once_and_removed() {
        let files = Files::default();
        let first = files.unpacked().unwrap();
        let path = first.path.clone();
        assert_eq!(files.unpacked().unwrap().start(), first.start());
        for (script, text) in SCRIPTS {
            assert_eq!(fs::read_to_string(path.join(script)).unwrap(), text);
        }
        drop(files);
        assert!(!path.exists());
        // Whoever still had it finds it gone.
        drop(first);
    }

    #[test]
    fn what_a_process_left_is_removed_and_what_is_in_use_is_not() {
        let place = std::env::temp_dir().join(format!("halimede-abandoned-{}", process::id()));
        fs::create_dir(&place).unwrap();
        let used = Directory::unpack(&place).unwrap();
        let left = Directory::unpack(&place).unwrap();
        let kept = place.join("somebody-else");
        fs::create_dir(&kept).unwrap();
        fs::write(kept.join(LOCK), "").unwrap();
        let without_lock = place.join(format!("{PREFIX}7-begun"));
        fs::create_dir(&without_lock).unwrap();
        // As a process ends that is killed: its files are closed, and nothing else happens.
        let Directory { path, _lock } = &left;
        let (path, lock) = (path.clone(), _lock.try_clone().unwrap());
        lock.unlock().unwrap();
        remove_abandoned(&place);
        assert!(!path.exists());
        assert!(used.start().exists() && kept.exists() && without_lock.exists());
        drop((used, left));
        fs::remove_dir_all(place).unwrap();
    }
}
