//! Ends as wide as two registers, which nearly all are, in the forms that most of those in floats have: sums, a bias,
//! a residual, bounds. What is done to a row is known to the compiler, and what all rows share stays in registers.
//! Ends in integers are faster in the general form, which asks what to do once for several registers.

use super::{Addend, Ending, PAIR};
use crate::real::Numbers;
use crate::vector::Vector;
use half::bf16;

/// What is read of a row to be added to it.
trait Added: Copy {
    /// # Safety
    /// As [`Vector::load`].
    unsafe fn add<V: Vector>(self, at: usize, number: V) -> V;
}

impl Added for () {
    #[inline(always)]
    unsafe fn add<V: Vector>(self, _: usize, number: V) -> V {
        number
    }
}

impl Added for *mut f32 {
    #[inline(always)]
    unsafe fn add<V: Vector>(self, at: usize, number: V) -> V {
        // SAFETY: the caller's promise, here and below.
        unsafe { number.plus(V::load(self.wrapping_add(at))) }
    }
}

impl Added for *mut bf16 {
    #[inline(always)]
    unsafe fn add<V: Vector>(self, at: usize, number: V) -> V {
        // SAFETY: as above.
        unsafe { number.plus(V::widen(self.wrapping_add(at))) }
    }
}

/// How a row is written.
trait Written: Copy {
    /// # Safety
    /// As [`Vector::store`].
    unsafe fn write<V: Vector>(self, at: usize, number: V);
}

impl Written for *mut f32 {
    #[inline(always)]
    unsafe fn write<V: Vector>(self, at: usize, number: V) {
        // SAFETY: as above.
        unsafe { number.store(self.wrapping_add(at)) }
    }
}

impl Written for *mut bf16 {
    #[inline(always)]
    unsafe fn write<V: Vector>(self, at: usize, number: V) {
        // SAFETY: as above.
        unsafe { number.narrow(self.wrapping_add(at)) }
    }
}

/// Writes the ending's target, if it has one of the forms of this module.
///
/// # Safety
/// As [`Ending::run_on`] without integers.
#[inline(always)]
pub(super) unsafe fn write<V: Vector>(ending: &Ending<'_>, sums: *const f32) -> bool {
    if ending.columns != PAIR * V::LANES || ending.function.is_some() {
        return false;
    }
    // SAFETY: the caller's promise.
    unsafe {
        match ending.residual.map(|Addend { numbers, .. }| numbers) {
            None => add::<V, _>(ending, sums, ()),
            Some(Numbers::F32(start)) => add::<V, _>(ending, sums, start),
            Some(Numbers::Bf16(start)) => add::<V, _>(ending, sums, start),
            Some(Numbers::U8(_) | Numbers::I8(_)) => false,
        }
    }
}

/// # Safety
/// As [`write`].
#[inline(always)]
unsafe fn add<V: Vector, A: Added>(ending: &Ending<'_>, sums: *const f32, added: A) -> bool {
    // SAFETY: the caller's promise.
    unsafe {
        match ending.target {
            Numbers::F32(start) => rows::<V, _, _>(ending, sums, added, start),
            Numbers::Bf16(start) => rows::<V, _, _>(ending, sums, added, start),
            Numbers::U8(_) | Numbers::I8(_) => return false,
        }
    }
    true
}

/// # Safety
/// As [`write`].
#[inline(always)]
unsafe fn rows<V: Vector, A: Added, W: Written>(ending: &Ending<'_>, sums: *const f32, added: A, target: W) {
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
