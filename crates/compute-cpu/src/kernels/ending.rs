//! The end of a product: what the commonest epilogues do to sums on their way to memory.

mod block;
mod gate;
#[cfg(target_arch = "x86_64")]
pub(super) mod registers;

use super::epilogue::{Common, Grid, Residual, activate};
use crate::Isa;
use crate::isa::multiversion;
use crate::real::Numbers;
#[cfg(test)]
use crate::vector::Four;
use crate::vector::Vector;
use crate::vector::within;
use gate::Gate;
use halimede_graph::ops::Unary;
use halimede_tensor::View;

/// Nothing is below or above.
pub(super) const UNBOUNDED: (f32, f32) = (f32::NEG_INFINITY, f32::INFINITY);

/// How sums in i32 become numbers, column by column: `f32(sum + added) · scale`.
#[derive(Clone, Copy)]
pub(super) struct Scaling<'a> {
    pub added: &'a [i32],
    pub scales: &'a [f32],
}

/// Numbers `(x - zero) · scale`, which those of floats are without.
#[derive(Clone, Copy)]
pub(super) struct Addend {
    pub numbers: Numbers,
    zero: f32,
    scale: f32,
}

/// Rows of sums, and how `function(sums + bias + residual)` or `function(sums + bias) + residual` within bounds,
/// each where it is there, becomes the target.
pub(super) struct Ending<'a> {
    pub rows: usize,
    pub columns: usize,
    /// Distance of rows in the sums.
    pub pitch: usize,
    /// The sums are the bits of integers that become numbers so.
    pub integers: Option<Scaling<'a>>,
    /// A number for each column; empty where there is none.
    pub bias: &'a [f32],
    /// What is left of sums and bias: the nearest point of a grid, times the distance of its points.
    pub snap: Option<(Grid, f32)>,
    pub residual: Option<Addend>,
    /// The residual is added behind the function.
    pub residual_last: bool,
    pub function: Option<Unary>,
    pub bounds: (f32, f32),
    /// What integers are written: points of a grid, counted from a zero point.
    pub quantize: Option<(Grid, f32)>,
    /// What is summed was rounded for speed: integers need not be the nearest.
    pub is_rounded: bool,
    /// Whatever the sums and a residual of bytes are, what is rounded to integers has no more than 31 bits.
    #[cfg(target_arch = "x86_64")]
    pub is_small: bool,
    pub target: Numbers,
    /// Distance of rows in residual and target.
    pub apart: usize,
    /// Rows further down, their lines of residual and target are asked for: 0 where they are near anyway.
    pub ahead: usize,
}

impl<'a> Ending<'a> {
    /// Writes sums and bias.
    pub fn new((rows, columns): (usize, usize), pitch: usize, bias: &'a [f32], target: Numbers, apart: usize) -> Self {
        Ending {
            rows,
            columns,
            pitch,
            integers: None,
            bias,
            snap: None,
            residual: None,
            residual_last: false,
            function: None,
            bounds: UNBOUNDED,
            quantize: None,
            is_rounded: false,
            #[cfg(target_arch = "x86_64")]
            is_small: false,
            target,
            apart,
            ahead: 0,
        }
    }

    /// All but the bias of an epilogue that reads `extra`; the first sum has the place `start` in the output.
    pub fn follow(&mut self, common: &Common, extra: &[Option<View<'_>>], start: usize) {
        let count = (self.rows.max(1) - 1) * self.apart + self.columns;
        let addend = |Residual { input, dtype, zero, scale }| {
            Some(Addend { numbers: Numbers::of(extra[input]?, dtype, start, count), zero, scale })
        };
        self.residual = common.residual.and_then(addend);
        self.residual_last = common.residual_last;
        (self.snap, self.quantize) = (common.snap, common.quantize);
        (self.function, self.bounds) = (common.function, (common.low, common.high));
    }

    /// Asks for the lines of the row that is [`Ending::ahead`] of one.
    #[inline(always)]
    fn ask_ahead(&self, row: usize, target: Option<Numbers>) {
        if self.ahead == 0 {
            return;
        }
        let coming = (row + self.ahead) * self.apart;
        if let Some(target) = target {
            target.ask_for(coming);
        }
        if let Some(residual) = self.residual {
            residual.numbers.ask_for(coming);
        }
    }

    /// Whether integers are read or written.
    fn has_integers(&self) -> bool {
        let is_integer = |numbers: Numbers| matches!(numbers, Numbers::U8(_) | Numbers::I8(_));
        let steps = self.integers.is_some() || self.snap.is_some() || self.quantize.is_some();
        steps || is_integer(self.target) || self.residual.is_some_and(|residual| is_integer(residual.numbers))
    }

    /// Writes the target. What the sums are afterwards is not said.
    ///
    /// # Safety
    /// Residual and target are valid for the rows and columns, and nobody else touches the target.
    pub unsafe fn run(&self, isa: Isa, sums: &mut [f32]) {
        // SAFETY: the caller's promise.
        unsafe { self.run_as(self.form(isa), sums) };
    }

    /// The same in a form that was chosen for an ending that differs from this one in places and numbers alone.
    ///
    /// # Safety
    /// As [`Ending::run`]; the form is one for such an ending.
    pub unsafe fn run_as(&self, form: Form, sums: &mut [f32]) {
        assert!(self.columns <= self.pitch && self.rows * self.pitch <= sums.len());
        assert!(self.bias.is_empty() || self.bias.len() >= self.columns);
        let covers = |scaling: Scaling<'_>| scaling.added.len().min(scaling.scales.len()) >= self.columns;
        assert!(self.integers.is_none_or(covers));
        if self.rows > 0 && self.columns > 0 {
            // SAFETY: the caller's promise.
            unsafe { (form.0)(self, sums.as_mut_ptr()) };
        }
    }

    /// As what ends in registers know it.
    #[cfg(target_arch = "x86_64")]
    pub fn kind_in_registers(&self, isa: Isa) -> Option<block::Kind> {
        isa.has_avx512().then(|| block::kind::<crate::vector::Avx512>(self)).flatten()
    }

    /// What runs this ending fastest.
    pub fn form(&self, isa: Isa) -> Form {
        #[cfg(target_arch = "x86_64")]
        {
            use crate::vector::{Avx2, Avx512};
            if isa.has_avx512_bf16() && self.columns >= Avx512::LANES {
                return avx512_bf16::choose(self);
            }
            if isa.has_avx512() && self.columns >= Avx512::LANES {
                return avx512::choose(self);
            }
            if isa.has_avx2() && self.columns >= Avx2::LANES {
                return avx2::choose(self);
            }
        }
        let _ = isa;
        four::choose(self)
    }
}

/// A function that runs endings of a kind. Having one proves that the machine has its instructions.
#[derive(Clone, Copy)]
pub(super) struct Form(unsafe fn(&Ending<'_>, *mut f32));

/// A module with the forms of endings in registers of a kind.
macro_rules! forms {
    ($name:ident, $vector:ident $(, $features:literal)?) => {
        mod $name {
            use super::block::{self, Added, Applied, Summed, Written};
            use super::{Ending, Form, end};
            use crate::vector::$vector;

            /// # Safety
            /// As [`end`], on a machine that has these features.
            $(#[target_feature(enable = $features)])?
            unsafe fn general<const INTEGERS: bool>(ending: &Ending<'_>, sums: *mut f32) {
                // SAFETY: the caller's promise, here and below.
                unsafe { end::<$vector, INTEGERS>(ending, sums) }
            }

            /// # Safety
            /// As [`block::rows`], on a machine that has these features.
            $(#[target_feature(enable = $features)])?
            unsafe fn wide<S: Summed, A: Added, F: Applied, W: Written>(ending: &Ending<'_>, sums: *mut f32) {
                // SAFETY: as above.
                unsafe { block::rows::<$vector, S, A, F, W, true>(ending, sums) }
            }

            /// # Safety
            /// As [`block::rows`], on a machine that has these features.
            $(#[target_feature(enable = $features)])?
            unsafe fn narrow<S: Summed, A: Added, F: Applied, W: Written>(ending: &Ending<'_>, sums: *mut f32) {
                // SAFETY: as above.
                unsafe { block::rows::<$vector, S, A, F, W, false>(ending, sums) }
            }

            /// The form for an ending, on a machine that has these features.
            pub(super) fn choose(ending: &Ending<'_>) -> Form {
                // Where there are no integers, neither is the code for them: it would take registers from the rest.
                Form(match block::kind::<$vector>(ending) {
                    Some(kind @ block::Kind { unbiased: Some(bounds), .. }) => {
                        block::with_unbiased_types!(kind, bounds, wide)
                    }
                    Some(kind) if kind.is_wide => block::with_types!(kind, wide),
                    Some(kind) => block::with_types!(kind, narrow),
                    None if ending.has_integers() => general::<true>,
                    None => general::<false>,
                })
            }
        }
    };
}

forms!(four, Four);
#[cfg(target_arch = "x86_64")]
forms!(avx2, Avx2, "avx2,fma,f16c");
#[cfg(target_arch = "x86_64")]
forms!(avx512, Avx512, "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c");
#[cfg(target_arch = "x86_64")]
forms!(avx512_bf16, Avx512Bf16, "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma,f16c");

/// Registers that go through all steps together: what the steps are is asked once for them.
const TOGETHER: usize = 8;
/// Registers that do so where there are fewer. A row of a block fills as many of the widest ones.
const PAIR: usize = 2;

/// What is done to sums on their way through registers.
#[derive(Clone, Copy)]
struct Steps<'a> {
    integers: Option<Scaling<'a>>,
    bias: &'a [f32],
    snap: Option<(Grid, f32)>,
    residual: Option<Addend>,
    /// One of those that [`logistic`] knows.
    function: Option<Unary>,
    /// A residual that is added behind the function.
    last: Option<Addend>,
    bounds: (f32, f32),
    quantize: Option<(Grid, f32)>,
}

impl Steps<'_> {
    /// Leaves sums as they are.
    const NONE: Steps<'static> = Steps {
        integers: None,
        bias: &[],
        snap: None,
        residual: None,
        function: None,
        last: None,
        bounds: UNBOUNDED,
        quantize: None,
    };
}

/// # Safety
/// As [`Vector`] and [`Ending::run`]; there are sums for the rows.
#[inline(always)]
unsafe fn end<V: Vector, const INTEGERS: bool>(ending: &Ending<'_>, sums: *mut f32) {
    let (residual, last) = if ending.residual_last { (None, ending.residual) } else { (ending.residual, None) };
    let Ending { integers, bias, snap, function, bounds, quantize, .. } = *ending;
    let all = Steps { integers, bias, snap, residual, function, last, bounds, quantize };
    // What is rounded to 8 or 16 bits next may be off by a small part of that rounding.
    let is_rounded = matches!(ending.target, Numbers::Bf16(_)) || ending.is_rounded && ending.quantize.is_some();
    let near = is_rounded && ending.function.is_some_and(is_logistic);
    // SAFETY: the caller's promise.
    unsafe {
        match ending.function {
            Some(function) if !near => {
                let before = Steps { integers, bias, snap, residual, ..Steps::NONE };
                if integers.is_some() || !bias.is_empty() || snap.is_some() || residual.is_some() {
                    write_rows::<V, INTEGERS>(ending, sums, &before, None);
                }
                // All rows are one line; what lies between their columns is never written.
                activate(function, std::slice::from_raw_parts_mut(sums, ending.rows * ending.pitch));
                let after = Steps { last, bounds, quantize, ..Steps::NONE };
                write_rows::<V, INTEGERS>(ending, sums, &after, Some(ending.target));
            }
            _ => write_rows::<V, INTEGERS>(ending, sums, &all, Some(ending.target)),
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
unsafe fn write_rows<V: Vector, const INTEGERS: bool>(
    ending: &Ending<'_>,
    sums: *mut f32,
    steps: &Steps<'_>,
    target: Option<Numbers>,
) {
    let Ending { rows, columns, pitch, apart, .. } = *ending;
    // The last register of a row ends with its columns, and makes some of them again: not what it made already.
    let whole = columns - columns % V::LANES;
    let in_registers = if target.is_some() && whole > 0 { columns } else { whole };
    let mut row = 0;
    // SAFETY: the caller's promise; the places are those of columns of the rows.
    unsafe {
        if columns == PAIR * V::LANES {
            // Nearly every piece is as wide as a block: its places are known but for the row.
            const ROWS: usize = TOGETHER / PAIR;
            while row + ROWS <= rows {
                for row in row..row + ROWS {
                    ending.ask_ahead(row, target);
                }
                let places: [Place; TOGETHER] = std::array::from_fn(|index| {
                    let (row, column) = (row + index / PAIR, index % PAIR * V::LANES);
                    Place { sum: row * pitch + column, column, target: row * apart + column }
                });
                steps.run::<V, INTEGERS, TOGETHER>(sums, &places, target);
                row += ROWS;
            }
        }
        let mut left = (rows - row) * in_registers.div_ceil(V::LANES);
        let mut column = 0;
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
                steps.run::<V, INTEGERS, TOGETHER>(sums, &places, target);
            } else {
                let (pairs, rest) = places[..count].as_chunks::<PAIR>();
                for pair in pairs {
                    steps.run::<V, INTEGERS, PAIR>(sums, pair, target);
                }
                for &place in rest {
                    steps.run::<V, INTEGERS, 1>(sums, &[place], target);
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
    unsafe fn run<V: Vector, const INTEGERS: bool, const N: usize>(
        &self,
        sums: *mut f32,
        places: &[Place; N],
        target: Option<Numbers>,
    ) {
        // SAFETY: the caller's promise.
        unsafe {
            let mut numbers = [V::splat(0.0); N];
            match self.integers {
                Some(Scaling { added, scales }) if INTEGERS => {
                    for index in 0..N {
                        let Place { sum, column, .. } = places[index];
                        let number = V::load(sums.add(sum)).sums(added.as_ptr().add(column));
                        numbers[index] = number.times(V::load(scales.as_ptr().add(column)));
                    }
                }
                _ => {
                    for index in 0..N {
                        numbers[index] = V::load(sums.add(places[index].sum));
                    }
                }
            }
            if !self.bias.is_empty() {
                for index in 0..N {
                    numbers[index] = numbers[index].plus(V::load(self.bias.as_ptr().add(places[index].column)));
                }
            }
            if INTEGERS && let Some((grid, distance)) = self.snap {
                let distance = V::splat(distance);
                for number in &mut numbers {
                    *number = nearest(grid, *number).times(distance);
                }
            }
            add::<V, INTEGERS, N>(&mut numbers, places, self.residual);
            if let Some(function) = self.function {
                logistic(function, &mut numbers);
            }
            add::<V, INTEGERS, N>(&mut numbers, places, self.last);
            let (low, high) = (V::splat(self.bounds.0), V::splat(self.bounds.1));
            for number in &mut numbers {
                *number = number.at_least(low).at_most(high);
            }
            if INTEGERS && let Some((grid, zero)) = self.quantize {
                let zero = V::splat(zero);
                for number in &mut numbers {
                    *number = nearest(grid, *number).plus(zero);
                }
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
                Some(Numbers::U8(start)) if INTEGERS => {
                    for index in 0..N {
                        numbers[index].store_bytes(start.add(places[index].target));
                    }
                }
                Some(Numbers::I8(start)) if INTEGERS => {
                    for index in 0..N {
                        numbers[index].store_bytes(start.add(places[index].target).cast());
                    }
                }
                Some(Numbers::U8(_) | Numbers::I8(_)) => {}
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
            let mut sum = *sums.add(place.sum);
            if let Some(Scaling { added, scales }) = self.integers {
                sum = (sum.to_bits() as i32).wrapping_add(added[place.column]) as f32 * scales[place.column];
            }
            sum += self.bias.get(place.column).unwrap_or(&0.0);
            if let Some((grid, distance)) = self.snap {
                sum = grid.nearest(sum) * distance;
            }
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
            sum = within(sum, self.bounds);
            if let Some((grid, zero)) = self.quantize {
                sum = grid.nearest(sum) + zero;
            }
            match target {
                None => *sums.add(place.sum) = sum,
                Some(target) => target.set(place.target, sum),
            }
        }
    }
}

impl Addend {
    /// # Safety
    /// As [`Numbers::get`].
    #[inline(always)]
    unsafe fn get(self, at: usize) -> f32 {
        // SAFETY: the caller's promise.
        let number = unsafe { self.numbers.get(at) };
        match self.numbers {
            Numbers::F32(_) | Numbers::Bf16(_) => number,
            Numbers::U8(_) | Numbers::I8(_) => (number - self.zero) * self.scale,
        }
    }
}

/// [`Grid::nearest`] of every lane.
///
/// # Safety
/// As [`Vector`].
#[inline(always)]
unsafe fn nearest<V: Vector>(grid: Grid, numbers: V) -> V {
    // SAFETY: the caller's promise.
    unsafe { numbers.times(V::splat(grid.inverse)).round().at_least(V::splat(grid.low)).at_most(V::splat(grid.high)) }
}

/// Adds a residual, where there is one.
///
/// # Safety
/// As [`end`].
#[inline(always)]
unsafe fn add<V: Vector, const INTEGERS: bool, const N: usize>(
    numbers: &mut [V; N],
    places: &[Place; N],
    residual: Option<Addend>,
) {
    let Some(Addend { numbers: start, zero, scale }) = residual else { return };
    // SAFETY: the caller's promise.
    unsafe {
        match start {
            Numbers::F32(start) => {
                for index in 0..N {
                    numbers[index] = numbers[index].plus(V::load(start.add(places[index].target)));
                }
            }
            Numbers::Bf16(start) => {
                for index in 0..N {
                    numbers[index] = numbers[index].plus(V::widen(start.add(places[index].target)));
                }
            }
            Numbers::U8(start) if INTEGERS => {
                let (zero, scale) = (V::splat(zero), V::splat(scale));
                for index in 0..N {
                    let added = V::widen_u8(start.add(places[index].target)).minus(zero).times(scale);
                    numbers[index] = numbers[index].plus(added);
                }
            }
            Numbers::I8(start) if INTEGERS => {
                let (zero, scale) = (V::splat(zero), V::splat(scale));
                for index in 0..N {
                    let added = V::widen_i8(start.add(places[index].target)).minus(zero).times(scale);
                    numbers[index] = numbers[index].plus(added);
                }
            }
            Numbers::U8(_) | Numbers::I8(_) => {}
        }
    }
}

/// Whether a function is made of the logistic one, as [`logistic`] makes it.
fn is_logistic(function: Unary) -> bool {
    function == Unary::Sigmoid || Gate::of(function).is_some()
}

/// # Safety
/// As [`Vector`].
#[inline(always)]
unsafe fn logistic<V: Vector, const N: usize>(function: Unary, numbers: &mut [V; N]) {
    // SAFETY: the caller's promise.
    unsafe {
        match Gate::of(function) {
            Some(gate) if gate.is_curved() => gate::pass::<V, true, N>(gate.lanes(), numbers),
            Some(gate) => gate::pass::<V, false, N>(gate.lanes(), numbers),
            None => {
                for x in numbers {
                    *x = x.logistic();
                }
            }
        }
    }
}

multiversion! {
    /// Makes numbers of sums, given by their bits, in rows that lie `pitch` apart.
    pub(super) fn scale(sums: &mut [f32], pitch: usize, scaling: Scaling<'_>) = scale_each
}

#[inline(always)]
fn scale_each(sums: &mut [f32], pitch: usize, Scaling { added, scales }: Scaling<'_>) {
    for sums in sums.chunks_exact_mut(pitch) {
        for ((sum, &added), &scale) in sums.iter_mut().zip(added).zip(scales) {
            *sum = (sum.to_bits() as i32).wrapping_add(added) as f32 * scale;
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::map::{gelu_erf, gelu_tanh};
    use half::bf16;

    #[test]
    fn near_functions_are_as_near_as_they_say() {
        for (function, exact, bound) in
            [(Unary::GeluErf, gelu_erf as fn(f32) -> f32, 5e-4), (Unary::GeluTanh, gelu_tanh, 2e-4)]
        {
            for x in (-3000..3000).map(|number| number as f32 * 0.01).chain([f32::NAN, f32::INFINITY]) {
                let (expected, mut made) = (exact(x), [0f32; 4]);
                // SAFETY: every machine has these vectors; they hold four numbers.
                unsafe {
                    let mut numbers = [Four::splat(x)];
                    logistic(function, &mut numbers);
                    numbers[0].store(made.as_mut_ptr());
                }
                let error = (made[0] - expected).abs();
                let is_same = made[0] == expected || made[0].is_nan() && expected.is_nan();
                assert!(
                    is_same || error <= bound * (expected.abs() + 0.01),
                    "{function:?} of {x}: {}, not {expected}",
                    made[0]
                );
            }
        }
    }

    /// Sums of integers that become bytes for speed, on every set of instructions, beside the numbers that they stand for.
    #[test]
    fn bytes_made_in_one_product_are_those_of_the_steps() {
        const ROWS: usize = 5;
        let mut middling = 0;
        for (isa, columns) in Isa::available().into_iter().flat_map(|isa| [8, 16, 32].map(|columns| (isa, columns))) {
            let number = |seed: usize, at: usize| ((at * 7919 + seed * 104_729) % 2003) as f32 / 1001.5 - 1.0;
            let each = |seed: usize, by: f32| -> Vec<f32> { (0..columns).map(|at| by * number(seed, at)).collect() };
            let added: Vec<i32> = each(1, 3e5).into_iter().map(|number| number as i32).collect();
            let (scales, bias) = (each(2, 1e-4), each(3, 20.0));
            let sums: Vec<i32> = (0..ROWS * columns).map(|at| (1e6 * number(4, at)) as i32).collect();
            let mut floats: Vec<f32> = (0..ROWS * columns).map(|at| 30.0 * number(5, at)).collect();
            let mut narrow: Vec<bf16> = floats.iter().map(|&float| bf16::from_f32(float)).collect();
            let mut bytes: Vec<u8> = (0..ROWS * columns).map(|at| (at * 31 % 256) as u8).collect();
            let addends = [
                None,
                Some(Addend { numbers: Numbers::F32(floats.as_mut_ptr()), zero: 0.0, scale: 1.0 }),
                Some(Addend { numbers: Numbers::Bf16(narrow.as_mut_ptr()), zero: 0.0, scale: 1.0 }),
                Some(Addend { numbers: Numbers::U8(bytes.as_mut_ptr()), zero: 120.0, scale: 0.25 }),
            ];
            let choices = addends.into_iter().flat_map(|residual| [true, false].map(|has_bias| (residual, has_bias)));
            for ((residual, has_bias), (low, zero)) in
                choices.flat_map(|choice| [(f32::NEG_INFINITY, 128), (0.0, 0), (0.0, 9)].map(|limits| (choice, limits)))
            {
                let grid = Grid { inverse: 1.0 / 0.4, low: -(zero as f32), high: 255.0 - zero as f32 };
                let mut made = vec![0u8; ROWS * columns];
                let ending = Ending {
                    integers: Some(Scaling { added: &added, scales: &scales }),
                    residual,
                    bounds: (low, f32::INFINITY),
                    quantize: Some((grid, zero as f32)),
                    is_rounded: true,
                    ..Ending::new(
                        (ROWS, columns),
                        columns,
                        if has_bias { &bias } else { &[] },
                        Numbers::U8(made.as_mut_ptr()),
                        columns,
                    )
                };
                let mut bits: Vec<f32> = sums.iter().map(|&sum| f32::from_bits(sum as u32)).collect();
                // SAFETY: residual and target are as large as the rows.
                unsafe { ending.run(isa, &mut bits) };
                for (at, &made) in made.iter().enumerate() {
                    let column = at % columns;
                    let mut number = f64::from(sums[at] + added[column]) * f64::from(scales[column]);
                    number += if has_bias { f64::from(bias[column]) } else { 0.0 };
                    number += match residual.map(|residual| residual.numbers) {
                        None => 0.0,
                        Some(Numbers::F32(_)) => f64::from(floats[at]),
                        Some(Numbers::Bf16(_)) => f64::from(narrow[at]),
                        Some(_) => (f64::from(bytes[at]) - 120.0) * 0.25,
                    };
                    let steps = number.max(f64::from(low)) * f64::from(grid.inverse);
                    let expected = (steps.round_ties_even() + f64::from(zero)).clamp(0.0, 255.0);
                    // Between two steps, either is right.
                    let is_middling = (steps.fract().abs() - 0.5).abs() < 1e-3;
                    middling += usize::from(is_middling);
                    let off = (f64::from(made) - expected).abs();
                    assert!(
                        off == 0.0 || off == 1.0 && is_middling,
                        "{} with {columns} columns, {at}: {made}, not {expected} ({steps})",
                        isa.name()
                    );
                }
            }
        }
        assert!(middling < 100, "{middling} numbers lie between two steps");
    }

    /// Sums that go through a function before they are rounded, on every set of instructions, beside the function of the
    /// numbers that they stand for.
    #[test]
    fn functions_of_sums_are_rounded_once() {
        const ROWS: usize = 5;
        let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
        let exact = |function: Unary, x: f64| match function {
            Unary::Silu => x * sigmoid(x),
            Unary::QuickGelu => x * sigmoid(1.702 * x),
            Unary::GeluErf => gelu_erf(x as f32).into(),
            Unary::GeluTanh => gelu_tanh(x as f32).into(),
            _ => sigmoid(x),
        };
        let functions = [Unary::Silu, Unary::QuickGelu, Unary::GeluErf, Unary::GeluTanh, Unary::Sigmoid];
        let widths = [4, 8, 11, 16, 24, 32, 40];
        for (isa, columns) in Isa::available().into_iter().flat_map(|isa| widths.map(|columns| (isa, columns))) {
            let number = |seed: usize, at: usize| ((at * 7919 + seed * 104_729) % 2003) as f32 / 1001.5 - 1.0;
            let each = |seed: usize, by: f32| -> Vec<f32> { (0..columns).map(|at| by * number(seed, at)).collect() };
            let added: Vec<i32> = each(1, 1e4).into_iter().map(|number| number as i32).collect();
            let (scales, bias) = (each(2, 2e-4), each(3, 2.0));
            let sums: Vec<i32> = (0..ROWS * columns).map(|at| (3e4 * number(4, at)) as i32).collect();
            let options = [(true, true), (true, false), (false, true), (false, false)];
            for (function, (scaled, has_bias)) in
                functions.into_iter().flat_map(|function| options.map(|options| (function, options)))
            {
                let number = |at: usize| {
                    let column = at % columns;
                    let number = match scaled {
                        true => f64::from(sums[at] + added[column]) * f64::from(scales[column]),
                        false => f64::from(sums[at] as f32 * 1e-4),
                    };
                    exact(function, number + if has_bias { f64::from(bias[column]) } else { 0.0 })
                };
                let (mut narrow, mut bytes) = (vec![bf16::ZERO; ROWS * columns], vec![0u8; ROWS * columns]);
                let grid = Grid { inverse: 1.0 / 0.05, low: -30.0, high: 225.0 };
                for target in [Numbers::Bf16(narrow.as_mut_ptr()), Numbers::U8(bytes.as_mut_ptr())] {
                    let ending = Ending {
                        integers: scaled.then_some(Scaling { added: &added, scales: &scales }),
                        function: Some(function),
                        quantize: matches!(target, Numbers::U8(_)).then_some((grid, 30.0)),
                        is_rounded: true,
                        ..Ending::new((ROWS, columns), columns, if has_bias { &bias } else { &[] }, target, columns)
                    };
                    let bits = |&sum: &i32| if scaled { f32::from_bits(sum as u32) } else { sum as f32 * 1e-4 };
                    let mut bits: Vec<f32> = sums.iter().map(bits).collect();
                    // SAFETY: the target is as large as the rows.
                    unsafe { ending.run(isa, &mut bits) };
                }
                for at in 0..ROWS * columns {
                    let (expected, made) = (number(at), f64::from(narrow[at]));
                    let what = || {
                        format!("{function:?} with {columns} columns on {}, {at}: {made}, not {expected}", isa.name())
                    };
                    // Half a step of bf16, and what the functions are off.
                    assert!((made - expected).abs() <= (expected.abs() + 0.01) * (1.0 / 256.0 + 6e-4), "{}", what());
                    let (steps, made) = (expected * f64::from(grid.inverse) + 30.0, f64::from(bytes[at]));
                    assert!((made - steps.clamp(0.0, 255.0)).abs() <= 0.5 + 0.02, "{}: {made} steps", what());
                }
            }
        }
    }
}
