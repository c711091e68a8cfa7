//! What processor this is: names, instruction sets, caches.

#[cfg(target_arch = "aarch64")]
#[path = "chip/arm.rs"]
mod arch;
#[cfg(target_arch = "x86_64")]
#[path = "chip/x86.rs"]
mod arch;
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
#[path = "chip/other.rs"]
mod arch;
mod feature;
mod names;

#[cfg(target_arch = "aarch64")]
pub(crate) use arch::ArmIdentity;
pub use feature::{Feature, Features};

use crate::Error;

/// A cache as one core sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cache {
    /// Size of the whole cache in bytes.
    pub bytes: usize,
    /// How many hardware threads share it, at most; `None` where the system does not tell.
    pub shared_by: Option<usize>,
}

/// The data caches of a fast core. A level that does not exist or is not told is `None`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Caches {
    /// First-level data cache.
    pub l1d: Option<Cache>,
    /// Second-level cache.
    pub l2: Option<Cache>,
    /// Third-level cache.
    pub l3: Option<Cache>,
    /// Bytes of a cache line.
    pub line: Option<usize>,
}

/// The processor of this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chip {
    /// Who made it, as the chip says: `GenuineIntel`, `AuthenticAMD`, `Apple`, `ARM`.
    pub vendor: Option<String>,
    /// What it is sold as: `Apple M2 Pro`, `AMD EPYC`.
    pub brand: Option<String>,
    /// Family number (x86), family identifier (macOS).
    pub family: Option<u32>,
    /// Model number (x86), part number (Arm).
    pub model: Option<u32>,
    /// Stepping (x86), variant and revision (Arm).
    pub stepping: Option<u32>,
    /// Instruction sets that this process may use.
    pub features: Features,
    /// Data caches.
    pub caches: Caches,
}

impl Chip {
    /// Asks the processor and the system. Takes microseconds to a millisecond: ask once, at start.
    pub fn detect() -> Self {
        arch::detect()
    }

    /// Name of the microarchitecture, guessed from the numbers: `Zen 4`, `Sapphire Rapids`.
    /// For people to read; decisions belong to [`features`](Self::features) and measurements.
    pub fn microarchitecture(&self) -> Option<&'static str> {
        names::microarchitecture(self)
    }

    /// A short text that is equal on equal chips, to key measurements by:
    /// `AuthenticAMD-25-17-1`, or the brand where there are no numbers.
    pub fn key(&self) -> String {
        let numbers = [self.family, self.model, self.stepping];
        let vendor = self.vendor.as_deref().unwrap_or("unknown");
        if numbers.iter().all(Option::is_none) {
            let brand = self.brand.as_deref().unwrap_or(std::env::consts::ARCH);
            return format!("{vendor}-{}", brand.replace(' ', "_"));
        }
        let numbers = numbers.map(|number| number.map_or_else(|| "x".to_owned(), |number| number.to_string()));
        format!("{vendor}-{}", numbers.join("-"))
    }
}

/// Asks the system to let this process use the matrix tiles (Intel AMX). Once per process is
/// enough, before the first tile instruction; without it that instruction is a fatal signal.
///
/// # Errors
/// When the processor or the system has no tiles.
pub fn permit_matrix_tiles() -> Result<(), Error> {
    let failed = |cause| Error::new("use", "the matrix tiles (AMX)", cause);
    if !Chip::detect().features.has(Feature::AmxTile) {
        return Err(failed(std::io::Error::new(std::io::ErrorKind::Unsupported, "this processor has none")));
    }
    crate::system::permit_matrix_tiles().map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_chip_is_known() {
        let chip = Chip::detect();
        assert!(chip.vendor.as_deref().is_some_and(|vendor| !vendor.is_empty()), "{chip:?}");
        assert!(!chip.key().contains(' '), "{}", chip.key());
        assert_eq!(chip, Chip::detect());
        let base = if cfg!(target_arch = "x86_64") { Feature::Sse2 } else { Feature::Neon };
        assert!(chip.features.has(base), "{:?}", chip.features);
        println!("{} = {chip:?}, {:?}", chip.key(), chip.microarchitecture());
    }

    #[test]
    fn cache_sizes_grow_with_the_level() {
        let caches = Chip::detect().caches;
        let sizes: Vec<usize> = [caches.l1d, caches.l2, caches.l3].into_iter().flatten().map(|c| c.bytes).collect();
        assert!(sizes.is_sorted(), "{caches:?}");
        assert!(sizes.first().is_none_or(|&l1d| (4 << 10..=1 << 20).contains(&l1d)), "{caches:?}");
        assert!(caches.line.is_none_or(|line| [32, 64, 128, 256].contains(&line)), "{caches:?}");
    }

    #[test]
    fn keys() {
        let mut chip = Chip {
            vendor: Some("Apple".into()),
            brand: Some("Apple M2 Pro".into()),
            family: None,
            model: None,
            stepping: None,
            features: Features::default(),
            caches: Caches::default(),
        };
        assert_eq!(chip.key(), "Apple-Apple_M2_Pro");
        (chip.family, chip.stepping) = (Some(7), Some(0));
        assert_eq!(chip.key(), "Apple-7-x-0");
    }

    #[test]
    fn tiles_are_permitted_exactly_where_they_exist() {
        let exist = Chip::detect().features.has(Feature::AmxTile);
        match permit_matrix_tiles() {
            Ok(()) => assert!(exist),
            Err(error) => assert!(error.to_string().starts_with("cannot use the matrix tiles (AMX): "), "{error}"),
        }
    }
}
