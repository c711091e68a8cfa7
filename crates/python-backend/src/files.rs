//! The scripts that run inside the interpreter: part of the program, and unpacked for it.

use std::{
    fs::{self, DirBuilder},
    io,
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
    process,
    sync::Arc,
    time::{SystemTime, UNIX_EPOCH},
};

use halimede_serving::Error;
use parking_lot::Mutex;

/// The script that the interpreter is started with.
const START: &str = "start.py";

macro_rules! scripts {
    ($($path:literal),* $(,)?) => {
        [$(($path, include_str!(concat!("../python/", $path)))),*]
    };
}

/// Every script, by its path.
const SCRIPTS: [(&str, &str); 11] = scripts![
    "start.py",
    "triton_python_backend_utils.py",
    "c_python_backend_utils.py",
    "halimede_host/__init__.py",
    "halimede_host/channel.py",
    "halimede_host/dlpack.py",
    "halimede_host/host.py",
    "halimede_host/logger.py",
    "halimede_host/messages.py",
    "halimede_host/model_config.py",
    "halimede_host/tensor.py",
];

/// Unpacks the scripts when they are wanted for the first time.
#[derive(Debug, Default)]
pub(crate) struct Files(Mutex<Option<Arc<Directory>>>);

/// A directory that only this user can read, with the scripts; removed with its last owner.
#[derive(Debug)]
pub(crate) struct Directory(PathBuf);

impl Files {
    /// Where the scripts are.
    pub fn unpacked(&self) -> Result<Arc<Directory>, Error> {
        let mut directory = self.0.lock();
        if let Some(directory) = &*directory {
            return Ok(directory.clone());
        }
        let unpacked = Directory::unpack()
            .map_err(|error| Error::internal(format!("cannot unpack the scripts of the python backend: {error}")))?;
        Ok(directory.insert(Arc::new(unpacked)).clone())
    }
}

impl Directory {
    fn unpack() -> io::Result<Self> {
        let nanos = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
        let path = std::env::temp_dir().join(format!("halimede-python-{}-{nanos:x}", process::id()));
        let private = |path: &Path| DirBuilder::new().mode(0o700).create(path);
        private(&path)?;
        let directory = Self(path);
        private(&directory.0.join("halimede_host"))?;
        for (script, text) in SCRIPTS {
            fs::write(directory.0.join(script), text)?;
        }
        Ok(directory)
    }

    /// The script to start the interpreter with.
    pub fn start(&self) -> PathBuf {
        self.0.join(START)
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        // The interpreter may have put its caches there; what cannot be removed is a few kilobytes.
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scripts_are_unpacked_once_and_removed() {
        let files = Files::default();
        let first = files.unpacked().unwrap();
        let path = first.0.clone();
        assert_eq!(files.unpacked().unwrap().start(), first.start());
        for (script, text) in SCRIPTS {
            assert_eq!(fs::read_to_string(path.join(script)).unwrap(), text);
        }
        drop((files, first));
        assert!(!path.exists());
    }
}
