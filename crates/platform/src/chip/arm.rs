//! 64-bit Arm: user code cannot read the identification registers everywhere, so names and
//! caches come from the system and instruction sets from the standard library's detection.

use std::arch::is_aarch64_feature_detected as detected;

use super::{Chip, Feature, Features};
use crate::system;

pub(super) fn detect() -> Chip {
    let identity = system::arm_identity();
    let features = Features::from_iter([
        (Feature::Neon, detected!("neon")),
        (Feature::Fp16, detected!("fp16")),
        (Feature::Dotprod, detected!("dotprod")),
        (Feature::Bf16, detected!("bf16")),
        (Feature::I8mm, detected!("i8mm")),
        (Feature::Sve, detected!("sve")),
        (Feature::Sve2, detected!("sve2")),
    ]);
    Chip {
        vendor: identity.vendor,
        brand: identity.brand,
        family: identity.family,
        model: identity.model,
        stepping: identity.stepping,
        features: features.union(system::arm_matrix_features()),
        caches: system::arm_caches(),
    }
}

/// What the system says about an Arm chip.
#[derive(Default)]
pub(crate) struct ArmIdentity {
    pub vendor: Option<String>,
    pub brand: Option<String>,
    pub family: Option<u32>,
    pub model: Option<u32>,
    pub stepping: Option<u32>,
}
