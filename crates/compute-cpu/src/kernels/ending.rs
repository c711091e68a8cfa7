//! The end of a product: what the commonest epilogues do to sums on their way to memory.

use super::epilogue::{Common, activate, within};
use crate::Isa;
use crate::isa::multiversion;
use crate::real::Numbers;
use crate::vector::{Four, Vector};
use halimede_graph::ops::Unary;
use halimede_tensor::View;

/// Nothing is below or above.
pub(super) const UNBOUNDED: (f32, f32) = (f32::NEG_INFINITY, f32::INFINITY);

/// Rows of sums, and how `function(sums + bias + residual)` or `function(sums + bias) + residual` within bounds,
/// each where it is there, becomes the target.
pub(super) struct Ending<'a> {
    pub rows: usize,
    pub columns: usize,
    /// Distance of rows in the sums.
    pub pitch: usize,
    /// A number for each column; empty where there is none.
    pub bias: &'a [f32],
    pub residual: Option<Numbers>,
    /// The residual is added behind the function.
    pub residual_last: bool,
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
        self.residual_last = common.residual_last;
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
                use crate::vector::{Avx2, Avx512};
                if isa.has_avx512_bf16() && self.columns >= Avx512::LANES {
                    return x86::avx512_bf16(self, sums);
                }
                if isa.has_avx512() && self.columns >= Avx512::LANES {
                    return x86::avx512(self, sums);
                }
                if isa.has_avx2() && self.columns >= Avx2::LANES {
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
    use crate::vector::{Avx2, Avx512, Avx512Bf16};

    /// # Safety
    /// As [`end`], on a machine with AVX-512 (F, BW, DQ, VL, BF16).
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma,f16c")]
    pub(super) unsafe fn avx512_bf16(ending: &Ending<'_>, sums: &mut [f32]) {
        // SAFETY: the caller's promise, here and below.
        unsafe { end::<Avx512Bf16>(ending, sums) }
    }

    /// # Safety
    /// As [`end`], on a machine with AVX-512 (F, BW, DQ, VL).
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
    pub(super) unsafe fn avx512(ending: &Ending<'_>, sums: &mut [f32]) {
        // SAFETY: as above.
        unsafe { end::<Avx512>(ending, sums) }
    }

    /// # Safety
    /// As [`end`], on a machine with AVX2 and FMA.
    #[target_feature(enable = "avx2,fma,f16c")]
    pub(super) unsafe fn avx2(ending: &Ending<'_>, sums: &mut [f32]) {
        // SAFETY: as above.
        unsafe { end::<Avx2>(ending, sums) }
    }
}

/// Registers that go through all steps together: what the steps are is asked once for them.
const TOGETHER: usize = 8;

/// What is done to sums on their way through registers.
#[derive(Clone, Copy)]
struct Steps<'a> {
    bias: &'a [f32],
    residual: Option<Numbers>,
    /// One of those that [`logistic`] knows.
    function: Option<Unary>,
    /// A residual that is added behind the function.
    last: Option<Numbers>,
    bounds: (f32, f32),
}

/// # Safety
/// As [`Vector`] and [`Ending::run`].
#[inline(always)]
unsafe fn end<V: Vector>(ending: &Ending<'_>, sums: &mut [f32]) {
    let (residual, last) = if ending.residual_last { (None, ending.residual) } else { (ending.residual, None) };
    let all = Steps { bias: ending.bias, residual, function: ending.function, last, bounds: ending.bounds };
    // What is rounded to bf16 next may be off by a small part of that rounding.
    let near = matches!(ending.target, Numbers::Bf16(_)) && ending.function.is_some_and(is_logistic);
    // SAFETY: the caller's promise.
    unsafe {
        match ending.function {
            Some(function) if !near => {
                let before = Steps { function: None, last: None, bounds: UNBOUNDED, ..all };
                if !before.bias.is_empty() || before.residual.is_some() {
                    write_rows::<V>(ending, sums.as_mut_ptr(), &before, None);
                }
                // All rows are one line; what lies between their columns is never written.
                activate(function, sums);
                let after = Steps { bias: &[], residual: None, function: None, ..all };
                write_rows::<V>(ending, sums.as_mut_ptr(), &after, Some(ending.target));
            }
            _ => write_rows::<V>(ending, sums.as_mut_ptr(), &all, Some(ending.target)),
        }
    }
}

/// Where a register of sums begins: in the sums, in its row, in residual and target.
#[derive(Clone, Copy, Default)]
struct Place {
    sum: usize,
    column: usize,
    target: usize,
}

/// Takes the sums through the steps, to the target or back where they are.
///
/// # Safety
/// As [`end`]; `sums` are the ending's.
#[inline(always)]
unsafe fn write_rows<V: Vector>(ending: &Ending<'_>, sums: *mut f32, steps: &Steps<'_>, target: Option<Numbers>) {
    let Ending { rows, columns, pitch, apart, .. } = *ending;
    // The last register of a row ends with its columns, and makes some of them again: not what it made already.
    let whole = columns - columns % V::LANES;
    let in_registers = if target.is_some() && whole > 0 { columns } else { whole };
    let mut left = rows * in_registers.div_ceil(V::LANES);
    let (mut row, mut column) = (0, 0);
    // SAFETY: the caller's promise; the places are those of columns of the rows.
    unsafe {
        while left > 0 {
            let mut places = [Place::default(); TOGETHER];
            let count = left.min(TOGETHER);
            for place in &mut places[..count] {
                let column_here = column.min(columns - V::LANES);
                *place =
                    Place { sum: row * pitch + column_here, column: column_here, target: row * apart + column_here };
                column += V::LANES;
                if column >= in_registers {
                    (row, column) = (row + 1, 0);
                }
            }
            if count == TOGETHER {
                steps.run::<V, TOGETHER>(sums, &places, target);
            } else {
                let (pairs, rest) = places[..count].as_chunks::<2>();
                for pair in pairs {
                    steps.run::<V, 2>(sums, pair, target);
                }
                for &place in rest {
                    steps.run::<V, 1>(sums, &[place], target);
                }
            }
            left -= count;
        }
        for (row, column) in (0..rows).flat_map(|row| (in_registers..columns).map(move |column| (row, column))) {
            let place = Place { sum: row * pitch + column, column, target: row * apart + column };
            steps.run_one(sums, place, target);
        }
    }
}

impl Steps<'_> {
    /// Takes registers of sums through the steps.
    ///
    /// # Safety
    /// As [`end`].
    #[inline(always)]
    unsafe fn run<V: Vector, const N: usize>(&self, sums: *mut f32, places: &[Place; N], target: Option<Numbers>) {
        // SAFETY: the caller's promise.
        unsafe {
            let mut numbers = [V::splat(0.0); N];
            for index in 0..N {
                numbers[index] = V::load(sums.add(places[index].sum));
            }
            if !self.bias.is_empty() {
                for index in 0..N {
                    numbers[index] = numbers[index].plus(V::load(self.bias.as_ptr().add(places[index].column)));
                }
            }
            add::<V, N>(&mut numbers, places, self.residual);
            if let Some(function) = self.function {
                logistic(function, &mut numbers);
            }
            add::<V, N>(&mut numbers, places, self.last);
            let (low, high) = (V::splat(self.bounds.0), V::splat(self.bounds.1));
            for number in &mut numbers {
                *number = number.at_least(low).at_most(high);
            }
            match target {
                None => {
                    for index in 0..N {
                        numbers[index].store(sums.add(places[index].sum));
                    }
                }
                Some(Numbers::F32(start)) => {
                    for index in 0..N {
                        numbers[index].store(start.add(places[index].target));
                    }
                }
                Some(Numbers::Bf16(start)) => {
                    for index in 0..N {
                        numbers[index].narrow(start.add(places[index].target));
                    }
                }
            }
        }
    }

    /// Takes one sum through the steps.
    ///
    /// # Safety
    /// As [`end`].
    #[inline(always)]
    unsafe fn run_one(&self, sums: *mut f32, place: Place, target: Option<Numbers>) {
        // SAFETY: the caller's promise.
        unsafe {
            let mut sum = *sums.add(place.sum) + self.bias.get(place.column).unwrap_or(&0.0);
            if let Some(residual) = self.residual {
                sum += residual.get(place.target);
            }
            if let Some(function) = self.function {
                let mut one = [sum];
                activate(function, &mut one);
                sum = one[0];
            }
            if let Some(last) = self.last {
                sum += last.get(place.target);
            }
            let sum = within(sum, self.bounds);
            match target {
                None => *sums.add(place.sum) = sum,
                Some(target) => target.set(place.target, sum),
            }
        }
    }
}

/// Adds a residual, where there is one.
///
/// # Safety
/// As [`end`].
#[inline(always)]
unsafe fn add<V: Vector, const N: usize>(numbers: &mut [V; N], places: &[Place; N], residual: Option<Numbers>) {
    // SAFETY: the caller's promise.
    unsafe {
        match residual {
            None => {}
            Some(Numbers::F32(start)) => {
                for index in 0..N {
                    numbers[index] = numbers[index].plus(V::load(start.add(places[index].target)));
                }
            }
            Some(Numbers::Bf16(start)) => {
                for index in 0..N {
                    numbers[index] = numbers[index].plus(V::widen(start.add(places[index].target)));
                }
            }
        }
    }
}

/// Whether a function is made of the logistic one, as [`logistic`] makes it.
fn is_logistic(function: Unary) -> bool {
    matches!(function, Unary::Silu | Unary::QuickGelu | Unary::Sigmoid)
}

/// # Safety
/// As [`Vector`].
#[inline(always)]
unsafe fn logistic<V: Vector, const N: usize>(function: Unary, numbers: &mut [V; N]) {
    // SAFETY: the caller's promise.
    unsafe {
        match function {
            Unary::Silu => {
                for x in numbers {
                    *x = x.times(x.logistic());
                }
            }
            Unary::QuickGelu => {
                for x in numbers {
                    *x = x.times(x.times(V::splat(1.702)).logistic());
                }
            }
            _ => {
                for x in numbers {
                    *x = x.logistic();
                }
            }
        }
    }
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
