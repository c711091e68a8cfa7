//! Completion: what the files of a model and the model itself add to its configuration.

mod backend;
mod batch_io;
mod check;
mod facts;
mod model;
mod sequences;

pub use backend::{Entry, VersionFiles, complete_backend};
pub use check::check_against_model;
pub use facts::{Batching, IoFacts, IoKind, ModelFacts};
pub use model::{Assumption, Completion, DEFAULT_MAX_BATCH_SIZE, complete_from_model};
