//! Triton's Python models: unmodified `model.py` files that import `triton_python_backend_utils`.
//!
//! Each instance is a process of its own, started with our host script (`python/`). Messages go over a socket
//! (`protocol.rs`), tensors through shared memory (`segment.rs`). A process that dies answers its requests with
//! an error and is started again.

#![forbid(unsafe_code)]

mod archive;
mod calls;
mod environment;
mod files;
mod instance;
mod metrics;
mod model;
mod process;
mod protocol;
mod segment;
mod tensors;

use halimede_serving::{
    Error,
    backend::{Backend, LoadedModel, ModelContext},
};

use self::{environment::Archives, files::Files};

pub use self::segment::key_prefix as segment_key_prefix;

/// The backend `python`.
#[derive(Debug, Default)]
pub struct Python {
    /// The scripts, once a model needed them.
    files: Files,
    /// Environments of models that came as archives.
    archives: Archives,
}

impl Backend for Python {
    fn name(&self) -> &str {
        "python"
    }

    fn load(&self, context: &ModelContext) -> Result<LoadedModel, Error> {
        model::load(context, &self.archives, self.files.unpacked()?)
    }
}
