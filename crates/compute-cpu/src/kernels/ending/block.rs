//! Ends as wide as two registers, which nearly all are, in the forms that most of those in floats have: sums, a bias,
//! a residual, bounds. What is done to a row is known to the compiler, and what all rows share stays in registers.
//! Ends in integers are faster in the general form, which asks what to do once for several registers.

use super::{Addend, Ending, PAIR};
use crate::real::Numbers;
use crate::vector::Vector;
use half::bf16;

/// What is read of a row to be added to it.
pub(super) trait Added: Copy {
    fn of(ending: &Ending<'_>) -> Option<Self>;
    /// # Safety
    /// As [`Vector::load`].
    unsafe fn add<V: Vector>(self, at: usize, number: V) -> V;
}

impl Added for () {
    fn of(_: &Ending<'_>) -> Option<()> {
        Some(())
    }

    #[inline(always)]
    unsafe fn add<V: Vector>(self, _: usize, number: V) -> V {
        number
    }
}

/// How a row is written.
pub(super) trait Written: Copy {
    fn of(ending: &Ending<'_>) -> Option<Self>;
    /// # Safety
    /// As [`Vector::store`].
    unsafe fn write<V: Vector>(self, at: usize, number: V);
}

macro_rules! numbers {
    ($($number:ty, $variant:ident, $load:ident, $store:ident);*) => {
        $(
            impl Added for *mut $number {
                #[inline(always)]
                fn of(ending: &Ending<'_>) -> Option<Self> {
                    match ending.residual {
                        Some(Addend { numbers: Numbers::$variant(start), .. }) => Some(start),
                        _ => None,
                    }
                }

                #[inline(always)]
                unsafe fn add<V: Vector>(self, at: usize, number: V) -> V {
                    // SAFETY: the caller's promise, here and below.
                    unsafe { number.plus(V::$load(self.wrapping_add(at))) }
                }
            }

            impl Written for *mut $number {
                #[inline(always)]
                fn of(ending: &Ending<'_>) -> Option<Self> {
                    match ending.target {
                        Numbers::$variant(start) => Some(start),
                        _ => None,
                    }
                }

                #[inline(always)]
                unsafe fn write<V: Vector>(self, at: usize, number: V) {
                    // SAFETY: as above.
                    unsafe { number.$store(self.wrapping_add(at)) }
                }
            }
        )*
    };
}
numbers!(f32, F32, load, store; bf16, Bf16, widen, narrow);

/// Which of the forms of this module an ending has: what is added, and what is written.
#[derive(Clone, Copy)]
pub(super) enum Kind {
    Written(Width),
    Added(Width, Width),
}

/// Of numbers.
#[derive(Clone, Copy)]
pub(super) enum Width {
    F32,
    Bf16,
}

impl Width {
    fn of(numbers: Numbers) -> Option<Width> {
        match numbers {
            Numbers::F32(_) => Some(Width::F32),
            Numbers::Bf16(_) => Some(Width::Bf16),
            Numbers::U8(_) | Numbers::I8(_) => None,
        }
    }
}

/// The kind of an ending, if it has one of the forms of this module.
pub(super) fn kind<V: Vector>(ending: &Ending<'_>) -> Option<Kind> {
    if ending.columns != PAIR * V::LANES || ending.function.is_some() || ending.has_integers() {
        return None;
    }
    let target = Width::of(ending.target)?;
    match ending.residual {
        None => Some(Kind::Written(target)),
        Some(residual) => Some(Kind::Added(Width::of(residual.numbers)?, target)),
    }
}

/// `$rows::<A, W>` for a kind.
macro_rules! with_types {
    ($kind:expr, $rows:ident) => {{
        use super::block::{Kind, Width};
        use half::bf16;
        match $kind {
            Kind::Written(Width::F32) => $rows::<(), *mut f32>,
            Kind::Written(Width::Bf16) => $rows::<(), *mut bf16>,
            Kind::Added(Width::F32, Width::F32) => $rows::<*mut f32, *mut f32>,
            Kind::Added(Width::F32, Width::Bf16) => $rows::<*mut f32, *mut bf16>,
            Kind::Added(Width::Bf16, Width::F32) => $rows::<*mut bf16, *mut f32>,
            Kind::Added(Width::Bf16, Width::Bf16) => $rows::<*mut bf16, *mut bf16>,
        }
    }};
}
pub(super) use with_types;

/// Writes the target of an ending that has this kind.
///
/// # Safety
/// As [`Ending::run`]; there are sums for the rows.
#[inline(always)]
pub(super) unsafe fn rows<V: Vector, A: Added, W: Written>(ending: &Ending<'_>, sums: *const f32) {
    let (Some(added), Some(target)) = (A::of(ending), W::of(ending)) else {
        return debug_assert!(false, "an ending of another kind");
    };
    let Ending { rows, pitch, apart, .. } = *ending;
    // SAFETY: the caller's promise; a row of sums and bias has two registers.
    unsafe {
        let (low, high) = (V::splat(ending.bounds.0), V::splat(ending.bounds.1));
        let mut bias = [V::splat(0.0); PAIR];
        if !ending.bias.is_empty() {
            bias = [V::load(ending.bias.as_ptr()), V::load(ending.bias.as_ptr().add(V::LANES))];
        }
        for row in 0..rows {
            ending.ask_ahead(row, Some(ending.target));
            for half in 0..PAIR {
                let column = half * V::LANES;
                let sum = V::load(sums.add(row * pitch + column));
                let number = added.add(row * apart + column, sum.plus(bias[half]));
                target.write(row * apart + column, number.at_least(low).at_most(high));
            }
        }
    }
}
