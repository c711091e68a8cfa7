//! The backends that are built in.

mod identity;

use std::sync::Arc;

pub use identity::Identity;

use crate::backend::Backend;

/// All of them.
pub fn built_in() -> Vec<Arc<dyn Backend>> {
    vec![Arc::new(Identity)]
}
