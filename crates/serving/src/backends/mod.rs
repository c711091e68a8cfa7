//! The backends that are built in.

mod accumulator;
#[cfg(test)]
mod decoupled_tests;
mod dyna_sequence;
mod identity;
mod implicit_state;
mod interface;
mod iterative_sequence;
mod onnx;
mod parameters;
mod repeat;
mod sequence;
mod square;
#[cfg(test)]
mod tests;

use std::sync::Arc;

pub use dyna_sequence::DynaSequence;
pub use identity::Identity;
pub use implicit_state::ImplicitState;
pub use iterative_sequence::IterativeSequence;
pub use onnx::{Kept, Onnx, Remember, Tuning, Wish};
pub use parameters::Parameters;
pub use repeat::Repeat;
pub use sequence::Sequence;
pub use square::Square;

use crate::backend::Backend;

/// Those that need no compute unit; [`Onnx`] is added by whoever has one.
pub fn built_in() -> Vec<Arc<dyn Backend>> {
    vec![
        Arc::new(DynaSequence),
        Arc::new(Identity),
        Arc::new(ImplicitState),
        Arc::new(IterativeSequence),
        Arc::new(Parameters),
        Arc::new(Repeat),
        Arc::new(Sequence),
        Arc::new(Square),
    ]
}
