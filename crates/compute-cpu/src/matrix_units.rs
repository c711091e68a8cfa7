//! Which matrix units multiply: found out by measurements, once for all who share them.

use crate::{
    Blas, HalfMatrix, IntegerMatrix, Matrix,
    halves::Halves,
    rates::{self, Work},
};
use std::sync::{Arc, OnceLock};

/// Which matrix unit to use.
#[derive(Debug, Clone, Copy, Default)]
pub enum MatrixChoice {
    /// The fastest of this machine, where it is worth rounding for; and for f32 the system's library, where that is
    /// faster than the unit's own kernels.
    #[default]
    Fastest,
    /// This one, and nothing of the system's.
    Only(Matrix),
    /// This one for f16, for products of any number of rows, nothing for bf16, and nothing of the system's.
    OnlyHalves(HalfMatrix),
    /// None: every product is in f32 on the unit's own kernels, and those of integers are made by vector instructions.
    None,
}

/// The units of a choice, each found out when somebody first wants it. Clones share what was found: measured again,
/// close rates might be told apart the other way, and two models of a server would compute differently.
#[derive(Debug, Clone, Default)]
pub struct MatrixUnits(Arc<Found>);

#[derive(Debug, Default)]
struct Found {
    choice: MatrixChoice,
    matrix: OnceLock<Option<Matrix>>,
    halves: OnceLock<Option<Halves>>,
    integers: OnceLock<IntegerMatrix>,
    blas: OnceLock<Option<Blas>>,
    f32_keeps_up_with_integers: OnceLock<bool>,
}

/// What multiplies so many times as fast as vectors of f32 gains more than Winograd's algorithm saves.
const TIMES_AS_FAST: f64 = 3.0;

impl From<MatrixChoice> for MatrixUnits {
    fn from(choice: MatrixChoice) -> MatrixUnits {
        MatrixUnits(Arc::new(Found { choice, ..Found::default() }))
    }
}

impl MatrixUnits {
    /// What multiplies bf16.
    pub(crate) fn matrix(&self) -> Option<Matrix> {
        *self.0.matrix.get_or_init(|| match self.0.choice {
            MatrixChoice::Fastest => Matrix::fastest(),
            MatrixChoice::Only(matrix) => Some(matrix),
            MatrixChoice::OnlyHalves(_) | MatrixChoice::None => None,
        })
    }

    /// What multiplies f16, where nothing multiplies bf16: that has the range of f32, and values between products are
    /// kept in it.
    pub(crate) fn halves(&self) -> Option<Halves> {
        if self.matrix().is_some() {
            return None;
        }
        *self.0.halves.get_or_init(|| match self.0.choice {
            MatrixChoice::Fastest => Halves::fastest(),
            MatrixChoice::OnlyHalves(unit) => Some(Halves { unit, library: None }),
            MatrixChoice::Only(_) | MatrixChoice::None => None,
        })
    }

    /// What products of floats run on in balanced precision, by name; `None` where they are exact.
    pub fn balanced_by(&self) -> Option<String> {
        let matrix = self.matrix().map(|matrix| matrix.name().to_owned());
        matrix.or_else(|| self.halves().map(|halves| halves.name()))
    }

    /// What multiplies f32 instead of the unit's own kernels, in every precision.
    pub(crate) fn blas(&self) -> Option<Blas> {
        *self.0.blas.get_or_init(|| match self.0.choice {
            MatrixChoice::Fastest => Blas::fastest(),
            MatrixChoice::Only(_) | MatrixChoice::OnlyHalves(_) | MatrixChoice::None => None,
        })
    }

    /// What multiplies integers, which every precision multiplies exactly.
    pub(crate) fn integers(&self) -> IntegerMatrix {
        *self.0.integers.get_or_init(|| IntegerMatrix::choose(self.may_use_tiles()))
    }

    /// Whether there are instructions for that.
    pub(crate) fn multiplies_integers(&self) -> bool {
        IntegerMatrix::available().iter().any(|unit| self.may_use_tiles() || !unit.has_tiles())
    }

    /// Whether vectors of f32 are not many times slower than what multiplies integers.
    pub(crate) fn f32_keeps_up_with_integers(&self) -> bool {
        let measure = || f32_keeps_up(self.integers().work());
        *self.0.f32_keeps_up_with_integers.get_or_init(measure)
    }

    fn may_use_tiles(&self) -> bool {
        !matches!(self.0.choice, MatrixChoice::None)
    }
}

fn f32_keeps_up(with: Work<'_>) -> bool {
    let rates = rates::in_turns([with, rates::f32_work().times(TIMES_AS_FAST)]);
    rates[0] < rates[1]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clones_share_what_was_found() {
        let units = MatrixUnits::from(MatrixChoice::Fastest);
        let clone = units.clone();
        assert_eq!(clone.0.matrix.get(), None);
        let matrix = units.matrix();
        assert_eq!(clone.0.matrix.get(), Some(&matrix));
        assert_eq!(clone.matrix(), matrix);
    }

    #[test]
    fn a_choice_is_kept() {
        let units = MatrixUnits::from(MatrixChoice::Only(Matrix::PORTABLE));
        assert_eq!(units.matrix(), Some(Matrix::PORTABLE));
        assert!(units.blas().is_none());
        let none = MatrixUnits::from(MatrixChoice::None);
        let halves = MatrixUnits::from(MatrixChoice::OnlyHalves(HalfMatrix::PORTABLE));
        assert_eq!(halves.halves().map(|halves| halves.unit), Some(HalfMatrix::PORTABLE));
        assert!(halves.matrix().is_none() && halves.blas().is_none() && units.halves().is_none());
        assert!(none.matrix().is_none() && none.halves().is_none() && none.blas().is_none());
        assert!(!none.integers().has_tiles());
    }
}
