//! Repositories that are not directories of this machine.

use std::{
    any::Any,
    collections::{BTreeMap, BTreeSet},
    fmt,
    path::PathBuf,
    sync::Arc,
};

use crate::error::Error;

/// A repository elsewhere, whose models are copied to this machine before they are loaded.
///
/// Every method may block, and may be called from several threads at once.
pub trait RemoteRepository: fmt::Debug + Send + Sync {
    /// Where it is, as it was given: what messages name, and the namespace of its models.
    fn address(&self) -> &str;

    /// Whether there is anything in it.
    ///
    /// # Errors
    /// It cannot be reached, or may not be read.
    fn exists(&self) -> Result<bool, Error>;

    /// The names of its models.
    ///
    /// # Errors
    /// It cannot be reached, or may not be read.
    fn names(&self) -> Result<BTreeSet<String>, Error>;

    /// The files of all models, or of one: an empty map where there is no such model. An error inside stands for one model
    /// that cannot be read.
    ///
    /// # Errors
    /// It cannot be reached, or may not be read.
    fn list(&self, model: Option<&str>) -> Result<BTreeMap<String, Result<Vec<RemoteFile>, Error>>, Error>;

    /// The content of one file, for a configuration.
    ///
    /// # Errors
    /// It cannot be read, or is no longer what was listed.
    fn read(&self, model: &str, file: &RemoteFile) -> Result<Vec<u8>, Error>;

    /// Copies the files of a model to this machine: all of them or none.
    ///
    /// # Errors
    /// One cannot be read, or is no longer what was listed; the text names it.
    fn fetch(&self, model: &str, files: &[RemoteFile]) -> Result<LocalCopy, Error>;

    /// Ends what is under way with an error, and whatever is asked later: the server ends and waits for none of it.
    fn close(&self);
}

/// A file of a model in a repository elsewhere.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RemoteFile {
    /// The path below the model's directory, with `/` between its parts; one that ends with `/` is a directory with nothing in it.
    pub path: String,
    /// Its length.
    pub bytes: u64,
    /// What is another as soon as the content is.
    pub version: String,
}

/// A copy of a model on this machine.
#[derive(Debug, Clone)]
pub struct LocalCopy {
    /// The directory of the model.
    pub directory: PathBuf,
    /// Dropped when nobody needs the directory any more.
    pub owner: Arc<dyn Any + Send + Sync>,
}
