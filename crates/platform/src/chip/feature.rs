use std::fmt;

/// An instruction set that kernels are written for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
#[allow(missing_docs)] // the names are the processors' own
pub enum Feature {
    Sse2,
    Sse42,
    Avx,
    F16c,
    Fma,
    Avx2,
    AvxVnni,
    Avx512f,
    Avx512bw,
    Avx512cd,
    Avx512dq,
    Avx512vl,
    Avx512vbmi,
    Avx512vnni,
    Avx512bf16,
    Avx512fp16,
    AmxTile,
    AmxInt8,
    AmxBf16,
    AmxFp16,
    Neon,
    Fp16,
    Dotprod,
    Bf16,
    I8mm,
    Sve,
    Sve2,
    Sme,
    Sme2,
}

impl Feature {
    /// Every feature, in the order of the enumeration, with its usual name in lower case.
    pub const ALL: [(Self, &'static str); 29] = [
        (Self::Sse2, "sse2"),
        (Self::Sse42, "sse4.2"),
        (Self::Avx, "avx"),
        (Self::F16c, "f16c"),
        (Self::Fma, "fma"),
        (Self::Avx2, "avx2"),
        (Self::AvxVnni, "avxvnni"),
        (Self::Avx512f, "avx512f"),
        (Self::Avx512bw, "avx512bw"),
        (Self::Avx512cd, "avx512cd"),
        (Self::Avx512dq, "avx512dq"),
        (Self::Avx512vl, "avx512vl"),
        (Self::Avx512vbmi, "avx512vbmi"),
        (Self::Avx512vnni, "avx512vnni"),
        (Self::Avx512bf16, "avx512bf16"),
        (Self::Avx512fp16, "avx512fp16"),
        (Self::AmxTile, "amx-tile"),
        (Self::AmxInt8, "amx-int8"),
        (Self::AmxBf16, "amx-bf16"),
        (Self::AmxFp16, "amx-fp16"),
        (Self::Neon, "neon"),
        (Self::Fp16, "fp16"),
        (Self::Dotprod, "dotprod"),
        (Self::Bf16, "bf16"),
        (Self::I8mm, "i8mm"),
        (Self::Sve, "sve"),
        (Self::Sve2, "sve2"),
        (Self::Sme, "sme"),
        (Self::Sme2, "sme2"),
    ];

    /// The usual name in lower case: `avx512vnni`, `i8mm`.
    pub fn name(self) -> &'static str {
        Self::ALL[self as usize].1
    }
}

/// A set of features.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct Features(u64);

impl Features {
    /// Whether `feature` is in the set.
    pub fn has(self, feature: Feature) -> bool {
        self.0 & 1 << feature as u8 != 0
    }

    /// The features of the set, in the order of the enumeration.
    pub fn iter(self) -> impl Iterator<Item = Feature> {
        Feature::ALL.into_iter().map(|(feature, _)| feature).filter(move |&feature| self.has(feature))
    }

    #[cfg(target_arch = "aarch64")]
    pub(super) fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl FromIterator<(Feature, bool)> for Features {
    fn from_iter<T: IntoIterator<Item = (Feature, bool)>>(present: T) -> Self {
        Self(present.into_iter().fold(0, |set, (feature, present)| set | u64::from(present) << feature as u8))
    }
}

/// The names, separated by spaces.
impl fmt::Display for Features {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, feature) in self.iter().enumerate() {
            write!(f, "{}{}", if index > 0 { " " } else { "" }, feature.name())?;
        }
        Ok(())
    }
}

impl fmt::Debug for Features {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Features({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_of_names_is_in_the_order_of_the_enumeration() {
        for (index, (feature, name)) in Feature::ALL.into_iter().enumerate() {
            assert_eq!(feature as usize, index, "{name}");
            assert_eq!(feature.name(), name);
        }
        assert!(Feature::ALL.len() <= 64, "Features holds 64 bits");
    }

    #[test]
    fn a_set_holds_what_was_put_in() {
        let set = Features::from_iter([(Feature::Avx2, true), (Feature::Fma, true), (Feature::Sme2, false)]);
        assert!(set.has(Feature::Avx2) && set.has(Feature::Fma) && !set.has(Feature::Sme2) && !set.has(Feature::Sse2));
        assert_eq!(set.to_string(), "fma avx2");
    }
}
