//! The backends that are built in.

#[cfg(test)]
mod decoupled_tests;
mod identity;
mod interface;
mod onnx;
mod parameters;
mod repeat;
mod square;
#[cfg(test)]
mod tests;

use std::sync::Arc;

pub use identity::Identity;
pub use onnx::{Kept, Onnx, Remember, Tuning};
pub use parameters::Parameters;
pub use repeat::Repeat;
pub use square::Square;

use crate::backend::Backend;

/// Those that need no compute unit; [`Onnx`] is added by whoever has one.
pub fn built_in() -> Vec<Arc<dyn Backend>> {
    vec![Arc::new(Identity), Arc::new(Parameters), Arc::new(Repeat), Arc::new(Square)]
}
