//! The scripts that run inside the interpreter: part of the program, and unpacked for it.

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
};

use halimede_serving::{
    Error,
    temporary::{TemporaryDirectory, private_directory, remove_abandoned},
};
use parking_lot::Mutex;

/// What names of directories begin with.
const PREFIX: &str = "halimede-python-";
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
pub(crate) struct Directory(TemporaryDirectory);

impl Files {
    /// Where the scripts are.
    pub fn unpacked(&self) -> Result<Arc<Directory>, Error> {
        let mut directory = self.0.lock();
        if let Some(directory) = &*directory {
            return Ok(directory.clone());
        }
        let place = std::env::temp_dir();
        remove_abandoned(&place, PREFIX);
        let unpacked = Directory::unpack(&place)
            .map_err(|error| Error::internal(format!("cannot unpack the scripts of the python backend: {error}")))?;
        Ok(directory.insert(Arc::new(unpacked)).clone())
    }
}

impl Drop for Files {
    /// The backend goes when the server ends, on which a process that is just being started has no say.
    fn drop(&mut self) {
        if let Some(directory) = self.0.get_mut() {
            let _ = fs::remove_dir_all(directory.0.path());
        }
    }
}

impl Directory {
    fn unpack(place: &Path) -> io::Result<Self> {
        let directory = TemporaryDirectory::create(place, PREFIX)?;
        private_directory().create(directory.path().join("halimede_host"))?;
        for (script, text) in SCRIPTS {
            fs::write(directory.path().join(script), text)?;
        }
        Ok(Self(directory))
    }

    /// Where environments of models are unpacked; they go with the directory.
    pub fn environments(&self) -> PathBuf {
        self.0.path().join("environments")
    }

    /// The script to start the interpreter with.
    pub fn start(&self) -> PathBuf {
        self.0.path().join(START)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scripts_are_unpacked_once_and_removed() {
        let files = Files::default();
        let first = files.unpacked().unwrap();
        let path = first.0.path().to_owned();
        assert_eq!(files.unpacked().unwrap().start(), first.start());
        for (script, text) in SCRIPTS {
            assert_eq!(fs::read_to_string(path.join(script)).unwrap(), text);
        }
        drop(files);
        assert!(!path.exists());
        // Whoever still had it finds it gone.
        drop(first);
    }
}
