use super::Chip;

/// The public code name that belongs to a chip's numbers.
pub(super) fn microarchitecture(chip: &Chip) -> Option<&'static str> {
    match (chip.vendor.as_deref()?, chip.family, chip.model) {
        ("GenuineIntel", Some(6), Some(model)) => intel(model, chip.stepping.unwrap_or(0)),
        ("AuthenticAMD", Some(family), Some(model)) => amd(family, model),
        ("ARM", _, Some(part)) => arm(part),
        ("Apple", _, _) => apple(chip.brand.as_deref()?),
        _ => None,
    }
}

fn intel(model: u32, stepping: u32) -> Option<&'static str> {
    Some(match model {
        0x3C | 0x3F | 0x45 | 0x46 => "Haswell",
        0x3D | 0x47 | 0x4F | 0x56 => "Broadwell",
        0x4E | 0x5E | 0x8E | 0x9E | 0xA5 | 0xA6 => "Skylake",
        0x55 if stepping >= 10 => "Cooper Lake",
        0x55 if stepping >= 5 => "Cascade Lake",
        0x55 => "Skylake-SP",
        0x6A | 0x6C => "Ice Lake-SP",
        0x7D | 0x7E => "Ice Lake",
        0x8C | 0x8D => "Tiger Lake",
        0xA7 => "Rocket Lake",
        0x97 | 0x9A => "Alder Lake",
        0xB7 | 0xBA | 0xBF => "Raptor Lake",
        0xAA | 0xAC => "Meteor Lake",
        0xBD => "Lunar Lake",
        0xB5 | 0xC5 | 0xC6 => "Arrow Lake",
        0x8F => "Sapphire Rapids",
        0xCF => "Emerald Rapids",
        0xAD | 0xAE => "Granite Rapids",
        0xAF => "Sierra Forest",
        _ => return None,
    })
}

fn amd(family: u32, model: u32) -> Option<&'static str> {
    Some(match (family, model) {
        (0x17, 0x00..=0x2F) => "Zen",
        (0x17, _) => "Zen 2",
        (0x19, 0x10..=0x1F | 0x60..=0x7F | 0xA0..=0xAF) => "Zen 4",
        (0x19, _) => "Zen 3",
        (0x1A, 0x00..=0x4F | 0x60..=0x7F) => "Zen 5",
        _ => return None,
    })
}

fn arm(part: u32) -> Option<&'static str> {
    Some(match part {
        0xD03 => "Cortex-A53",
        0xD08 => "Cortex-A72",
        0xD0B => "Cortex-A76",
        0xD0C => "Neoverse N1",
        0xD40 => "Neoverse V1",
        0xD49 => "Neoverse N2",
        0xD4F => "Neoverse V2",
        0xD84 => "Neoverse V3",
        0xD8E => "Neoverse N3",
        _ => return None,
    })
}

fn apple(brand: &str) -> Option<&'static str> {
    const GENERATIONS: [&str; 5] = ["M1", "M2", "M3", "M4", "M5"];
    GENERATIONS.into_iter().find(|generation| brand.split(' ').any(|word| word == *generation))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chip::{Caches, Features};

    #[test]
    fn names_of_known_chips() {
        let name = |vendor: &str, family, model, stepping, brand: &str| {
            let chip = Chip {
                vendor: Some(vendor.to_owned()),
                brand: Some(brand.to_owned()),
                family,
                model,
                stepping,
                features: Features::default(),
                caches: Caches::default(),
            };
            microarchitecture(&chip)
        };
        let x86 = |vendor, family, model, stepping| name(vendor, Some(family), Some(model), Some(stepping), "");
        assert_eq!(x86("GenuineIntel", 6, 0x8F, 8), Some("Sapphire Rapids"));
        assert_eq!(x86("GenuineIntel", 6, 0x55, 7), Some("Cascade Lake"));
        assert_eq!(x86("GenuineIntel", 6, 0x01, 0), None);
        assert_eq!(x86("AuthenticAMD", 25, 17, 1), Some("Zen 4"));
        assert_eq!(x86("AuthenticAMD", 25, 1, 1), Some("Zen 3"));
        assert_eq!(x86("AuthenticAMD", 26, 2, 1), Some("Zen 5"));
        assert_eq!(name("ARM", None, Some(0xD0C), None, ""), Some("Neoverse N1"));
        assert_eq!(name("Apple", None, None, None, "Apple M2 Pro"), Some("M2"));
        assert_eq!(name("Apple", None, None, None, "Apple M21"), None);
        assert_eq!(name("Someone", None, None, None, ""), None);
    }
}
