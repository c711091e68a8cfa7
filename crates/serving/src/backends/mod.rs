//! The backends that are built in.

mod identity;
mod onnx;
mod parameters;
#[cfg(test)]
mod tests;

use std::sync::Arc;

pub use identity::Identity;
pub use onnx::{Kept, Onnx, Remember, Tuning};
pub use parameters::Parameters;

use crate::backend::Backend;

/// Those that need no compute unit; [`Onnx`] is added by whoever has one.
pub fn built_in() -> Vec<Arc<dyn Backend>> {
    vec![Arc::new(Identity), Arc::new(Parameters)]
}
