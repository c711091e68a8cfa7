//! Where the files of a model are, and what their names alone tell of it.

use std::{
    any::Any,
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
};

use super::scan::{self, SentDirectory, Timestamps};
use crate::{
    config::{Entry, ModelConfig, NOT_UTF8, VersionFiles},
    error::Error,
    remote::{LocalCopy, RemoteFile, RemoteRepository},
};

/// The files of a model.
#[derive(Debug, Clone)]
pub(super) enum ModelFiles {
    /// In a directory of this machine.
    Directory(PathBuf),
    /// Sent by a client, in a directory that goes with its last owner.
    Sent(Arc<SentDirectory>),
    /// Elsewhere.
    Remote(RemoteModel),
}

/// A model in a repository elsewhere.
#[derive(Debug, Clone)]
pub(super) struct RemoteModel {
    pub repository: Arc<dyn RemoteRepository>,
    pub name: String,
    pub files: Arc<[RemoteFile]>,
}

/// On which side of the network files are.
enum Place<'a> {
    Here(&'a Path),
    Elsewhere(&'a RemoteModel),
}

/// The files of a model on this machine, as long as this lives.
#[derive(Debug, Clone)]
pub(super) struct LocalFiles {
    pub directory: PathBuf,
    pub owner: Option<Arc<dyn Any + Send + Sync>>,
}

/// Bytes of a configuration, at most. Its largest parts are names and labels.
const CONFIG_BYTES_MAX: u64 = 64 << 20;

/// The text of a configuration's file; of a device or a pipe nobody knows where it ends.
pub fn read_config_text(path: &Path) -> io::Result<String> {
    let metadata = fs::metadata(path)?;
    if !metadata.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
    }
    if metadata.len() > CONFIG_BYTES_MAX {
        let text =
            format!("its {} bytes are more than the {CONFIG_BYTES_MAX} that a configuration may have", metadata.len());
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, text));
    }
    Ok(config_text(&fs::read(path)?))
}

/// The text of a configuration. Comments may have bytes of another encoding; a string that has some is refused where it is
/// read ([`NOT_UTF8`]).
fn config_text(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        text.push_str(chunk.valid());
        if !chunk.invalid().is_empty() {
            text.push(NOT_UTF8);
        }
    }
    text
}

impl ModelFiles {
    fn place(&self) -> Place<'_> {
        match self {
            ModelFiles::Directory(directory) => Place::Here(directory),
            ModelFiles::Sent(directory) => Place::Here(&directory.path),
            ModelFiles::Remote(model) => Place::Elsewhere(model),
        }
    }

    /// The directory, where it is one of this machine.
    pub fn directory(&self) -> Option<&Path> {
        match self.place() {
            Place::Here(directory) => Some(directory),
            Place::Elsewhere(_) => None,
        }
    }

    /// The text of the configuration and where it lies. `None` where there is none and that `is_fine`.
    pub fn read_config(&self, config_name: &str, is_fine: bool) -> Result<Option<(String, PathBuf)>, Error> {
        let directory = match self.place() {
            Place::Here(directory) => directory,
            Place::Elsewhere(model) => return model.read_config(config_name, is_fine),
        };
        let path = scan::config_path(directory, config_name);
        if is_fine && !path.exists() {
            return Ok(None);
        }
        let text = read_config_text(&path).map_err(|error| {
            Error::internal(format!("failed to open text file for read {}: {error}", path.display()))
        })?;
        Ok(Some((text, path)))
    }

    /// When the files changed.
    pub fn timestamps(&self, config_name: &str) -> Timestamps {
        match self {
            ModelFiles::Directory(directory) => Timestamps::read(directory, &scan::config_path(directory, config_name)),
            // With timestamps of their own they would hide a change in the repository.
            ModelFiles::Sent(_) => Timestamps::default(),
            ModelFiles::Remote(model) => Timestamps::of_remote(&model.files, model.config_path(config_name)),
        }
    }

    /// The files of the first version.
    pub fn version_files(&self) -> Result<VersionFiles, Error> {
        match self.place() {
            Place::Here(directory) => VersionFiles::read(directory)
                .map_err(|error| Error::internal(format!("failed to open directory {}: {error}", directory.display()))),
            Place::Elsewhere(model) => {
                Ok(VersionFiles::of(&model.entries(""), |version| Ok(model.entries(&format!("{version}/"))))
                    .unwrap_or_default())
            }
        }
    }

    /// The versions that the version policy selects, ascending.
    pub fn versions(&self, config: &ModelConfig) -> Result<Vec<i64>, Error> {
        let names = match self.place() {
            Place::Here(directory) => scan::subdirectories(directory).map_err(|error| {
                Error::internal(format!("failed to read the directory '{}': {error}", directory.display()))
            })?,
            Place::Elsewhere(model) => {
                model.entries("").into_iter().filter(|entry| entry.is_directory).map(|entry| entry.name).collect()
            }
        };
        Ok(scan::select_versions(names, config))
    }

    /// Brings them to this machine, where they are not yet.
    pub fn fetch(&self) -> Result<LocalFiles, Error> {
        match self {
            ModelFiles::Directory(directory) => Ok(LocalFiles { directory: directory.clone(), owner: None }),
            ModelFiles::Sent(directory) => {
                Ok(LocalFiles { directory: directory.path.clone(), owner: Some(directory.clone()) })
            }
            ModelFiles::Remote(model) => {
                let LocalCopy { directory, owner } = model.repository.fetch(&model.name, &model.files)?;
                Ok(LocalFiles { directory, owner: Some(owner) })
            }
        }
    }

    /// Whether they are in this repository.
    pub fn is_in(&self, repository: &Arc<dyn RemoteRepository>) -> bool {
        matches!(self, ModelFiles::Remote(model) if Arc::ptr_eq(&model.repository, repository))
    }
}

impl RemoteModel {
    fn find(&self, path: &str) -> Option<&RemoteFile> {
        self.files.iter().find(|file| file.path == path)
    }

    /// As [`scan::config_path`].
    fn config_path(&self, config_name: &str) -> String {
        let custom = format!("configs/{config_name}.pbtxt");
        let is_there = !config_name.is_empty() && self.find(&custom).is_some();
        if is_there { custom } else { "config.pbtxt".to_owned() }
    }

    fn read_config(&self, config_name: &str, is_fine: bool) -> Result<Option<(String, PathBuf)>, Error> {
        let path = self.config_path(config_name);
        let address = format!("{}/{}/{path}", self.repository.address(), self.name);
        let Some(file) = self.find(&path) else {
            return if is_fine { Ok(None) } else { Err(Error::internal(format!("File does not exist at {address}"))) };
        };
        let bytes = self.repository.read(&self.name, file)?;
        Ok(Some((config_text(&bytes), PathBuf::from(address))))
    }

    /// What lies directly below `prefix`, which is empty or ends with `/`.
    fn entries(&self, prefix: &str) -> Vec<Entry> {
        let mut entries = BTreeMap::new();
        for below in self.files.iter().filter_map(|file| file.path.strip_prefix(prefix)) {
            match below.split_once('/') {
                Some((name, _)) => *entries.entry(name).or_default() |= true,
                None if below.is_empty() => {}
                None => *entries.entry(below).or_default() |= false,
            }
        }
        entries.into_iter().map(|(name, is_directory)| Entry { name: name.to_owned(), is_directory }).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config;

    #[test]
    fn comments_may_have_any_bytes() {
        // In Latin 1.
        let text = b"# mod\xe8le\nname: \"a\"\nmax_batch_size: 3 # d\xe9j\xe0\n";
        let parse = |bytes: &[u8]| config::parse(&config_text(bytes), Path::new("config.pbtxt"));
        let config = parse(text).unwrap();
        assert_eq!((config.name.as_str(), config.max_batch_size), ("a", 3));
        assert_eq!(config_text("name: \"\u{e9}\"".as_bytes()), "name: \"\u{e9}\"");
        let error = parse(b"name: \"a\"\ndefault_model_filename: \"\xe9\"").unwrap_err();
        assert!(error.to_string().contains("line 2, column 25: the string of field"), "{error}");
    }
}
