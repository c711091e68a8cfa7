//! The response cache: responses kept by what was asked, so that a model need not run for the same question again.
//!
//! `ModelCache` stands in front of each version of a model whose configuration asks for it; where responses are
//! kept is behind [`ResponseCache`].

mod key;
mod local;
mod model;
#[cfg(test)]
mod tests;

use std::fmt;

pub use key::CacheKey;
pub use local::LocalCache;
pub(crate) use model::ModelCache;

use crate::{error::Error, metrics::Family, response::OutputTensor};

/// Where responses are kept.
pub trait ResponseCache: Send + Sync + fmt::Debug {
    /// The outputs that were kept under `key`.
    ///
    /// # Errors
    /// The cache cannot be asked; the request is then answered by its model.
    fn look_up(&self, key: &CacheKey) -> Result<Option<Vec<OutputTensor>>, Error>;

    /// Keeps outputs under `key`, unless some are there already. What it keeps is a copy.
    ///
    /// # Errors
    /// The outputs cannot be kept.
    fn insert(&self, key: &CacheKey, outputs: &[OutputTensor]) -> Result<Insertion, Error>;

    /// What the cache counts.
    fn metrics(&self) -> Vec<Family>;

    /// Whether other servers have the same cache, or this one after its end. Answers are then found again by the names of
    /// models alone; otherwise a model that is loaded again answers anew.
    fn is_shared(&self) -> bool {
        false
    }

    /// Takes work that asks the cache, where that may take longer than a thread of a protocol can wait. The work is
    /// given back where it may be done at once.
    fn defer(&self, work: Work) -> Deferral {
        Deferral::Now(work)
    }
}

/// Something that asks a cache.
pub type Work = Box<dyn FnOnce() + Send>;

/// What becomes of work.
pub enum Deferral {
    /// It is to be done by the caller.
    Now(Work),
    /// It is done later, on another thread.
    Later,
    /// Too much work waits: the cache is to be done without.
    Full,
}

/// What became of outputs that were to be kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Insertion {
    /// They are kept.
    Done,
    /// Another request was faster.
    AlreadyThere,
}
