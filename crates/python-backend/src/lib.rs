//! Triton's Python models: unmodified `model.py` files that import `triton_python_backend_utils`.
//!
//! Each instance is a process of its own, started with our host script (`python/`). Messages (`protocol.rs`) go over a
//! socket (`link.rs`), tensors through shared memory (`segment.rs`). A process that dies answers its requests with
//! an error and is started again.

#![forbid(unsafe_code)]

mod archive;
mod calls;
mod environment;
mod files;
mod instance;
mod link;
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

use tokio::runtime::Handle;

use self::{environment::Archives, files::Files, process::Processes};

pub use self::segment::key_prefix as segment_key_prefix;

/// The backend `python`.
#[derive(Debug)]
pub struct Python {
    /// What listens to processes.
    runtime: Handle,
    /// The scripts, once a model needed them.
    files: Files,
    /// Environments of models that came as archives.
    archives: Archives,
    processes: Processes,
}

impl Python {
    /// `runtime` listens to the processes of models, until they have ended. It needs drivers for input, output and time, and
    /// several threads or one that others can take the place of (tokio's multi-threaded runtime), for some of what
    /// processes say takes long.
    pub fn new(runtime: Handle) -> Self {
        Self { runtime, files: Files::default(), archives: Archives::default(), processes: Processes::default() }
    }

    /// Ends the processes of all models, also those that are stopped or listen to nobody, and does not wait for them. For a
    /// server that ends without its models.
    pub fn kill_processes(&self) {
        self.processes.kill();
    }
}

impl Backend for Python {
    fn name(&self) -> &str {
        "python"
    }

    fn load(&self, context: &ModelContext) -> Result<LoadedModel, Error> {
        model::load(context, &self.archives, self.files.unpacked()?, &self.runtime, &self.processes)
    }
}
