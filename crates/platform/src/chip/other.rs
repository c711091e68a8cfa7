//! Any other architecture: the portable kernels run, and nothing is known about the chip.

use super::{Caches, Chip, Features};

pub(super) fn detect() -> Chip {
    Chip {
        vendor: None,
        brand: None,
        family: None,
        model: None,
        stepping: None,
        features: Features::default(),
        caches: Caches::default(),
    }
}
