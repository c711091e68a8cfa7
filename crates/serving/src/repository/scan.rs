//! What lies in the directories of a repository, and when it changed.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io,
    path::{Path, PathBuf},
    time::SystemTime,
};

use crate::{
    config::{
        ModelConfig,
        proto::model_version_policy::{All, Latest, PolicyChoice},
    },
    remote::RemoteFile,
    temporary::{TemporaryDirectory, private_directory, remove_abandoned},
};

/// Names of the directories in `directory`; links to directories count.
pub(super) fn subdirectories(directory: &Path) -> io::Result<BTreeSet<String>> {
    let mut names = BTreeSet::new();
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        if entry.path().is_dir() {
            // A name that is no text cannot be asked for.
            names.extend(entry.file_name().into_string());
        }
    }
    Ok(names)
}

/// The versions that the version policy of a model selects from the names of its directories, ascending.
pub(super) fn select_versions(directories: BTreeSet<String>, config: &ModelConfig) -> Vec<i64> {
    let mut existing = Vec::new();
    for name in directories {
        match version_number(&name) {
            Some(version) => existing.push(version),
            None if ["warmup", "initial_state", "configs"].contains(&name.as_str()) => {}
            None => {
                let why = match name.starts_with('0') {
                    true => "contains leading zeros in its directory name",
                    false => "fails to convert to integral number",
                };
                tracing::warn!("ignore version directory '{name}' which {why}, of model '{}'", config.name);
            }
        }
    }
    existing.sort_unstable();
    let policy = config.version_policy.as_ref().and_then(|policy| policy.policy_choice.as_ref());
    match policy {
        Some(PolicyChoice::All(All {})) => existing,
        Some(PolicyChoice::Specific(specific)) => {
            for version in specific.versions.iter().filter(|version| !existing.contains(version)) {
                tracing::error!(
                    "version {version} is specified for model '{}', but the version directory is not present",
                    config.name
                );
            }
            existing.retain(|version| specific.versions.contains(version));
            existing
        }
        other => {
            let count = match other {
                Some(PolicyChoice::Latest(Latest { num_versions })) => *num_versions as usize,
                _ => 1,
            };
            existing.split_off(existing.len().saturating_sub(count))
        }
    }
}

/// A positive number without leading zeros.
fn version_number(name: &str) -> Option<i64> {
    let is_plain = name.bytes().all(|byte| byte.is_ascii_digit()) && !name.starts_with('0');
    name.parse().ok().filter(|_| is_plain)
}

/// The configuration file of a model: `configs/NAME.pbtxt` where `config_name` is given and the file
/// exists, `config.pbtxt` otherwise.
pub(super) fn config_path(directory: &Path, config_name: &str) -> PathBuf {
    let custom = directory.join("configs").join(format!("{config_name}.pbtxt"));
    if !config_name.is_empty() && custom.is_file() { custom } else { directory.join("config.pbtxt") }
}

/// When the parts of a model's directory changed. The default is older than anything.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Timestamps {
    /// Entry of the directory (empty: the directory itself) to the newest time below it.
    times: BTreeMap<String, SystemTime>,
    /// Entry to what tells its content from any other's, where the model is in a repository elsewhere: its times would be
    /// those of another machine, and no finer than a second.
    contents: BTreeMap<String, String>,
    /// The entry that holds the configuration.
    config: Option<String>,
}

impl Timestamps {
    /// Reads them; the default where the directory cannot be read.
    pub fn read(directory: &Path, config_path: &Path) -> Self {
        let read = || -> io::Result<Self> {
            let mut times = BTreeMap::from([(String::new(), fs::metadata(directory)?.modified()?)]);
            let mut config = None;
            for entry in fs::read_dir(directory)? {
                let entry = entry?;
                let name = entry.file_name().to_string_lossy().into_owned();
                if config_path.starts_with(entry.path()) {
                    config = Some(name.clone());
                }
                times.insert(name, newest(&entry.path(), DEPTH_MAX));
            }
            Ok(Self { times, contents: BTreeMap::new(), config })
        };
        read().unwrap_or_else(|error| {
            tracing::error!("failed to determine modification time for '{}': {error}", directory.display());
            Self::default()
        })
    }

    /// Of files elsewhere.
    pub fn of_remote(files: &[RemoteFile], config_path: String) -> Self {
        let mut contents: BTreeMap<String, String> = BTreeMap::new();
        for RemoteFile { path, bytes, version } in files {
            let entry = path.split_once('/').map_or(path.as_str(), |(entry, _)| entry);
            let content = contents.entry(entry.to_owned()).or_default();
            // Lengths in front, so that no name or version can look like the end of one.
            content.push_str(&format!("{} {path} {} {version} {bytes}\n", path.len(), version.len()));
        }
        let is_there = files.iter().any(|file| file.path == config_path);
        let config = config_path.split('/').next().filter(|_| is_there).map(str::to_owned);
        Self { times: BTreeMap::new(), contents, config }
    }

    /// Whether anything is newer in `new`, or another.
    pub fn is_modified(&self, new: &Self) -> bool {
        self.times.values().max() < new.times.values().max() || self.contents != new.contents
    }

    /// Whether a version, or a file that all versions share, is newer in `new`. The configuration and
    /// other versions do not count.
    pub fn is_version_modified(&self, new: &Self, version: i64) -> bool {
        let version = version.to_string();
        let time =
            |of: &Self| of.times.iter().filter(|(name, _)| of.concerns(name, &version)).map(|(_, time)| *time).max();
        let contents = |of: &Self| -> Vec<(String, String)> {
            let concerned = of.contents.iter().filter(|(name, _)| of.concerns(name, &version));
            concerned.map(|(name, content)| (name.clone(), content.clone())).collect()
        };
        time(self) < time(new) || contents(self) != contents(new)
    }

    /// Whether an entry belongs to a version, or to all of them.
    fn concerns(&self, name: &str, version: &str) -> bool {
        let is_shared = name.bytes().any(|byte| !byte.is_ascii_digit()) && self.config.as_deref() != Some(name);
        name == version || is_shared
    }

    /// As if the configuration changed at `time`.
    pub fn set_config_time(&mut self, time: SystemTime) {
        if let Some(config) = &self.config {
            self.times.insert(config.clone(), time);
        } else {
            self.times.insert(String::new(), time);
        }
    }
}

/// Directories below a model that are looked into; a link back up must not be followed for ever.
const DEPTH_MAX: usize = 16;

/// The newest time at or below a path; 1970 where it cannot be read.
fn newest(path: &Path, depth: usize) -> SystemTime {
    let own = fs::metadata(path).and_then(|metadata| metadata.modified()).unwrap_or(SystemTime::UNIX_EPOCH);
    let children = fs::read_dir(path).into_iter().flatten().flatten().filter(|_| depth > 0);
    children.map(|child| newest(&child.path(), depth - 1)).chain([own]).max().unwrap_or(own)
}

/// What names of directories for files that clients sent begin with.
const SENT_PREFIX: &str = "halimede-sent-";

/// The directory of a model whose files a client sent; goes when the last owner lets go of it.
#[derive(Debug)]
pub(super) struct SentDirectory {
    /// The directory of the model.
    pub path: PathBuf,
    /// What it lies in.
    _around: TemporaryDirectory,
}

impl SentDirectory {
    /// A new empty one.
    pub fn new() -> io::Result<Self> {
        let around = TemporaryDirectory::create(&std::env::temp_dir(), SENT_PREFIX)?;
        let path = around.path().join("model");
        private_directory().create(&path)?;
        Ok(Self { path, _around: around })
    }

    /// Removes those of servers that were killed.
    pub fn remove_abandoned() {
        remove_abandoned(&std::env::temp_dir(), SENT_PREFIX);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::config::proto::{ModelVersionPolicy, model_version_policy::Specific};

    fn policy(choice: Option<PolicyChoice>) -> ModelConfig {
        ModelConfig { version_policy: Some(ModelVersionPolicy { policy_choice: choice }), ..ModelConfig::default() }
    }

    #[test]
    fn versions_are_selected_by_policy() {
        let directory = SentDirectory::new().unwrap();
        for name in ["1", "2", "10", "0", "03", "x", "warmup", "1x"] {
            fs::create_dir(directory.path.join(name)).unwrap();
        }
        fs::write(directory.path.join("4"), "a file is no version").unwrap();
        let specific = Specific { versions: vec![10, 1, 99] };
        for (choice, expected) in [
            (None, &[10][..]),
            (Some(PolicyChoice::Latest(Latest { num_versions: 2 })), &[2, 10]),
            (Some(PolicyChoice::Latest(Latest { num_versions: 9 })), &[1, 2, 10]),
            (Some(PolicyChoice::All(All {})), &[1, 2, 10]),
            (Some(PolicyChoice::Specific(specific)), &[1, 10]),
        ] {
            assert_eq!(select_versions(subdirectories(&directory.path).unwrap(), &policy(choice)), expected);
        }
    }

    #[test]
    fn changes_are_seen_where_they_are() {
        let directory = SentDirectory::new().unwrap();
        let config = directory.path.join("config.pbtxt");
        for name in ["1", "2"] {
            fs::create_dir(directory.path.join(name)).unwrap();
        }
        fs::write(&config, "").unwrap();
        let before = Timestamps::read(&directory.path, &config);
        assert!(!before.is_modified(&before) && Timestamps::default().is_modified(&before));

        let later = SystemTime::now() + Duration::from_secs(60);
        let mut after = before.clone();
        after.set_config_time(later);
        assert!(before.is_modified(&after) && !before.is_version_modified(&after, 1));

        fs::write(directory.path.join("1/model.onnx"), "").unwrap();
        fs::File::options().write(true).open(directory.path.join("1/model.onnx")).unwrap().set_modified(later).unwrap();
        let after = Timestamps::read(&directory.path, &config);
        assert!(before.is_version_modified(&after, 1) && !before.is_version_modified(&after, 2));
    }

    #[test]
    fn changes_elsewhere_are_seen_where_they_are() {
        let file =
            |path: &str, version: &str| RemoteFile { path: path.to_owned(), bytes: 1, version: version.to_owned() };
        let of = |files: &[RemoteFile]| Timestamps::of_remote(files, "config.pbtxt".to_owned());
        let before = of(&[file("1/a", "x"), file("2/a", "x"), file("config.pbtxt", "x"), file("labels.txt", "x")]);
        assert!(!before.is_modified(&before) && Timestamps::default().is_modified(&before));

        let config = of(&[file("1/a", "x"), file("2/a", "x"), file("config.pbtxt", "y"), file("labels.txt", "x")]);
        assert!(before.is_modified(&config) && !before.is_version_modified(&config, 1));

        let version = of(&[file("1/a", "x"), file("2/a", "y"), file("config.pbtxt", "x"), file("labels.txt", "x")]);
        assert!(before.is_version_modified(&version, 2) && !before.is_version_modified(&version, 1));

        let without_labels = of(&[file("1/a", "x"), file("2/a", "x"), file("config.pbtxt", "x")]);
        assert!(before.is_modified(&without_labels) && before.is_version_modified(&without_labels, 1));
    }
}
