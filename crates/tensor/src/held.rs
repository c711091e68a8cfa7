use std::iter::Sum;
use std::ops::{Add, AddAssign};

/// Bytes that something holds, by whose memory they lie in.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Held {
    /// In memory of this process alone.
    pub private: usize,
    /// In memory that was lent: of constants and weights a mapped file, whose pages all processes share.
    pub mapped: usize,
}

impl Held {
    /// All of them.
    pub fn total(self) -> usize {
        self.private + self.mapped
    }
}

impl Add for Held {
    type Output = Held;
    fn add(self, other: Held) -> Held {
        Held { private: self.private + other.private, mapped: self.mapped + other.mapped }
    }
}

impl AddAssign for Held {
    fn add_assign(&mut self, other: Held) {
        *self = *self + other;
    }
}

impl Sum for Held {
    fn sum<I: Iterator<Item = Held>>(parts: I) -> Held {
        parts.fold(Held::default(), Held::add)
    }
}
