//! The end of a product: what the commonest epilogues do to sums on their way to memory.

use super::epilogue::{Common, activate, activate_near, within};
use crate::Isa;
use crate::isa::multiversion;
use crate::real::Numbers;
use crate::vector::{Four, Vector};
use halimede_graph::ops::Unary;
use halimede_tensor::View;

/// Nothing is below or above.
pub(super) const UNBOUNDED: (f32, f32) = (f32::NEG_INFINITY, f32::INFINITY);

/// Rows of sums, and how `function(sums + bias + residual)` within bounds, each where it is there, becomes
/// the target.
pub(super) struct Ending<'a> {
    pub rows: usize,
    pub columns: usize,
    /// Distance of rows in the sums.
    pub pitch: usize,
    /// A number for each column; empty where there is none.
    pub bias: &'a [f32],
    pub residual: Option<Numbers>,
    pub function: Option<Unary>,
    pub bounds: (f32, f32),
    pub target: Numbers,
    /// Distance of rows in residual and target.
    pub apart: usize,
}

impl Ending<'_> {
    /// Residual, function and bounds of an epilogue that reads `extra`; the first sum has the place `start` in
    /// the output.
    pub fn follow(&mut self, common: &Common, extra: &[Option<View<'_>>], start: usize) {
        let count = (self.rows.max(1) - 1) * self.apart + self.columns;
        let residual = common.residual.and_then(|input| extra[input]);
        self.residual = residual.map(|view| Numbers::of(view, common.residual_type, start, count));
        (self.function, self.bounds) = (common.function, (common.low, common.high));
    }

    /// Writes the target. What the sums are afterwards is not said.
    ///
    /// # Safety
    /// Residual and target are valid for the rows and columns, and nobody else touches the target.
    pub unsafe fn run(&self, isa: Isa, sums: &mut [f32]) {
        let sums = &mut sums[..self.rows * self.pitch];
        assert!(self.columns <= self.pitch && (self.bias.is_empty() || self.bias.len() >= self.columns));
        if sums.is_empty() || self.columns == 0 {
            return;
        }
        // SAFETY: an `Isa` exists only where the machine has its instructions; else the caller's promise.
        unsafe {
            #[cfg(target_arch = "x86_64")]
            {
                use std::arch::x86_64::{__m256, __m512};
                if isa.has_avx512() && self.columns >= __m512::LANES {
                    return x86::avx512(self, sums);
                }
                if isa.has_avx2() && self.columns >= __m256::LANES {
                    return x86::avx2(self, sums);
                }
            }
            let _ = isa;
            end::<Four>(self, sums);
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{Ending, end};
    use std::arch::x86_64::{__m256, __m512};

    /// # Safety
    /// As [`end`], on a machine with AVX-512 (F, BW, DQ, VL).
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
    pub(super) unsafe fn avx512(ending: &Ending<'_>, sums: &mut [f32]) {
        // SAFETY: the caller's promise, here and below.
        unsafe { end::<__m512>(ending, sums) }
    }

    /// # Safety
    /// As [`end`], on a machine with AVX2 and FMA.
    #[target_feature(enable = "avx2,fma,f16c")]
    pub(super) unsafe fn avx2(ending: &Ending<'_>, sums: &mut [f32]) {
        // SAFETY: as above.
        unsafe { end::<__m256>(ending, sums) }
    }
}

/// # Safety
/// As [`Vector`] and [`Ending::run`].
#[inline(always)]
unsafe fn end<V: Vector>(ending: &Ending<'_>, sums: &mut [f32]) {
    // SAFETY: the caller's promise.
    unsafe {
        let Some(function) = ending.function else { return write::<V>(ending, sums, ending.bias, ending.residual) };
        if !ending.bias.is_empty() || ending.residual.is_some() {
            add::<V>(ending, sums);
        }
        // All rows are one line; what lies between their columns is never written.
        match ending.target {
            Numbers::F32(_) => activate(function, sums),
            Numbers::Bf16(_) => activate_near(function, sums),
        }
        write::<V>(ending, sums, &[], None);
    }
}

/// Adds bias and residual to the sums.
///
/// # Safety
/// As [`end`].
#[inline(always)]
unsafe fn add<V: Vector>(ending: &Ending<'_>, sums: &mut [f32]) {
    let Ending { columns, bias, residual, .. } = *ending;
    let whole = columns - columns % V::LANES;
    for (row, sums) in sums.chunks_exact_mut(ending.pitch).enumerate() {
        let place = row * ending.apart;
        // SAFETY: the caller's promise; sums and bias have these columns.
        unsafe {
            for at in (0..whole).step_by(V::LANES) {
                with::<V>(sums, bias, residual, place, at).store(sums.as_mut_ptr().add(at));
            }
            for at in whole..columns {
                sums[at] = with_one(sums, bias, residual, place, at);
            }
        }
    }
}

/// Writes sums with what is added to them, within their bounds.
///
/// # Safety
/// As [`end`].
#[inline(always)]
unsafe fn write<V: Vector>(ending: &Ending<'_>, sums: &[f32], bias: &[f32], residual: Option<Numbers>) {
    let Ending { columns, target, bounds, .. } = *ending;
    // SAFETY: the caller's promise; sums and bias have these columns.
    unsafe {
        let (low, high) = (V::splat(bounds.0), V::splat(bounds.1));
        for (row, sums) in sums.chunks_exact(ending.pitch).enumerate() {
            let place = row * ending.apart;
            if columns < V::LANES {
                for at in 0..columns {
                    target.set(place + at, within(with_one(sums, bias, residual, place, at), bounds));
                }
                continue;
            }
            for at in (0..columns).step_by(V::LANES) {
                // The last register ends with the columns, and writes some of them again.
                let at = at.min(columns - V::LANES);
                let sum = with::<V>(sums, bias, residual, place, at).at_least(low).at_most(high);
                target.store(place + at, sum);
            }
        }
    }
}

/// A register of sums with what is added to them.
///
/// # Safety
/// As [`end`], for the columns from `at` on.
#[inline(always)]
unsafe fn with<V: Vector>(sums: &[f32], bias: &[f32], residual: Option<Numbers>, place: usize, at: usize) -> V {
    // SAFETY: the caller's promise.
    unsafe {
        let mut sum = V::load(sums.as_ptr().add(at));
        if !bias.is_empty() {
            sum = sum.plus(V::load(bias.as_ptr().add(at)));
        }
        if let Some(residual) = residual {
            sum = sum.plus(residual.load(place + at));
        }
        sum
    }
}

/// One sum with what is added to it.
///
/// # Safety
/// As [`end`], for the column `at`.
#[inline(always)]
unsafe fn with_one(sums: &[f32], bias: &[f32], residual: Option<Numbers>, place: usize, at: usize) -> f32 {
    // SAFETY: the caller's promise.
    let residual = residual.map(|residual| unsafe { residual.get(place + at) });
    sums[at] + bias.get(at).unwrap_or(&0.0) + residual.unwrap_or(0.0)
}

multiversion! {
    /// Adds a number for each column to rows of sums that lie `pitch` apart.
    pub(super) fn add_bias(sums: &mut [f32], pitch: usize, bias: &[f32]) = add_to_each
}

#[inline(always)]
fn add_to_each(sums: &mut [f32], pitch: usize, bias: &[f32]) {
    for sums in sums.chunks_exact_mut(pitch) {
        sums.iter_mut().zip(bias).for_each(|(sum, &bias)| *sum += bias);
    }
}
