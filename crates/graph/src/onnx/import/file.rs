//! Where a model's bytes lie: its own file, and the files beside it that hold large tensors.

use super::Reason;
use bytes::Bytes;
use halimede_platform::mmap::{Advice, MappedFile};
use std::collections::HashMap;
use std::fmt;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

/// The file of a model: the path itself, or the one inside a folder of that name. Triton takes
/// `model.onnx` as a folder that holds `model.onnx` and its external data.
pub(super) fn locate(path: &Path) -> Result<PathBuf, Reason> {
    if !path.is_dir() {
        return Ok(path.to_owned());
    }
    let inside = path.join("model.onnx");
    if inside.is_file() {
        return Ok(inside);
    }
    let entries = std::fs::read_dir(path).map_err(|error| Reason::File(error.to_string()))?;
    let mut models: Vec<PathBuf> = entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|entry| entry.is_file() && entry.extension().is_some_and(|e| e == "onnx"))
        .collect();
    match (models.pop(), models.pop()) {
        (Some(only), None) => Ok(only),
        (None, _) => Err(Reason::File(
            match path.join("config.pbtxt").is_file() {
                true => {
                    "a model without an .onnx file, such as an ensemble: `halimede serve` runs it with its repository"
                }
                false => {
                    "a folder without an .onnx file; name the model file 'model.onnx', or one folder of a repository"
                }
            }
            .to_owned(),
        )),
        (Some(a), Some(b)) => Err(Reason::File(format!(
            "a folder with several models ('{}', '{}'); name the one to load 'model.onnx'",
            name(&a),
            name(&b)
        ))),
    }
}

fn name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// The mapped files of a model. Constants of its graph may lie in them.
#[derive(Clone, Default)]
pub struct Files(Vec<Arc<MappedFile>>);

impl Files {
    /// Tells the system that the bytes will hardly be read again, so that their pages take no memory:
    /// to be called when a unit has packed the weights.
    pub fn release(&self) {
        for file in &self.0 {
            // Advice: where the system does not take it, the pages stay until it needs them.
            let _ = file.advise(0..file.len(), Advice::DontNeed);
        }
    }

    /// Whether all of them are still what was read.
    pub fn are_unchanged(&self) -> bool {
        self.0.iter().all(|file| file.is_unchanged())
    }

    pub(super) fn push(&mut self, file: Arc<MappedFile>) {
        self.0.push(file);
    }
}

impl fmt::Debug for Files {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Files({})", self.0.len())
    }
}

/// Maps a file: its bytes are read when they are touched.
pub(super) fn map(path: &Path) -> Result<(Arc<MappedFile>, Bytes), Reason> {
    struct Owner(Arc<MappedFile>);
    impl AsRef<[u8]> for Owner {
        fn as_ref(&self) -> &[u8] {
            &self.0
        }
    }
    let file = MappedFile::open(path).map(Arc::new).map_err(|error| Reason::File(error.to_string()))?;
    Ok((file.clone(), Bytes::from_owner(Owner(file))))
}

/// The files with external data, each mapped once.
pub(super) struct External {
    /// The folder that they must lie in; `None` where the model did not come from a file.
    directory: Option<PathBuf>,
    files: HashMap<PathBuf, Bytes>,
    mapped: Files,
}

impl External {
    pub(super) fn new(directory: Option<&Path>) -> External {
        External { directory: directory.map(Path::to_owned), files: HashMap::new(), mapped: Files::default() }
    }

    /// The files that were needed.
    pub(super) fn into_files(self) -> Files {
        self.mapped
    }

    /// `length` bytes (all that follow where `None`) from `offset` of the file at `location`, a path
    /// below the model's directory.
    pub(super) fn read(&mut self, location: &str, offset: u64, length: Option<u64>) -> Result<Bytes, String> {
        let path = self.resolve(location)?;
        let file = match self.files.get(&path) {
            Some(file) => file.clone(),
            None => {
                let (mapped, bytes) = map(&path).map_err(|error| error.to_string())?;
                self.mapped.push(mapped);
                self.files.insert(path, bytes.clone());
                bytes
            }
        };
        let size = file.len() as u64;
        let end = offset.checked_add(length.unwrap_or(size.saturating_sub(offset)));
        match end {
            Some(end) if offset <= size && end <= size => Ok(file.slice(offset as usize..end as usize)),
            _ => Err(format!(
                "external data '{location}' has {size} bytes; the model asks for {} from {offset} on",
                length.map_or("all".to_owned(), |length| length.to_string())
            )),
        }
    }

    /// The file itself, never outside the model's directory: neither by `..` nor through a link.
    fn resolve(&self, location: &str) -> Result<PathBuf, String> {
        let directory = self.directory.as_deref().ok_or_else(|| {
            format!("external data '{location}' needs the model's directory, and this model came from memory")
        })?;
        let relative = Path::new(location);
        let inside = relative.components().all(|part| matches!(part, Component::Normal(_) | Component::CurDir));
        if location.is_empty() || location.contains('\0') || !inside {
            return Err(format!(
                "external data '{location}' lies outside the model's directory; copy the file beside the model and \
                 store its plain name"
            ));
        }
        let resolve = |path: &Path| {
            path.canonicalize().map_err(|error| format!("cannot open external data '{location}': {error}"))
        };
        let (root, file) = (resolve(directory)?, resolve(&directory.join(relative))?);
        if !file.starts_with(&root) {
            return Err(format!("external data '{location}' is a link to a file outside the model's directory"));
        }
        Ok(file)
    }
}
