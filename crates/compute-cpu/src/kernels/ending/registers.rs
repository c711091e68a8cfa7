//! Ends of rows in registers of AVX-512, in the forms of [`super::block`] that products have most: of sums that are still there, and of
//! sums in memory. What is told of a piece are its places alone: all else is worked out once, for whatever ends the pieces of a product.

pub(in crate::kernels) use super::block::Kind;
use super::block::{
    Added, Applied, Begun, Floats, Integers, Near, Plain, Quantized, Shared, Summed, Unbiased, Width, Written,
};
use super::{Addend, Ending, PAIR, block};
use crate::Isa;
use crate::matrix::{
    BLOCK, Beside, End, Halves, Later, Pending, RowByRow, Runs, Strips, beside_bf16, beside_u8, bf16_halves,
    bf16_strips, bf16_three_quarters, u8_halves_to_bf16, u8_strips, u8_strips_to_bf16,
};
use crate::real::Numbers;
use crate::vector::{Avx512, Avx512Bf16, Wide, rows};
use half::bf16;
use std::arch::x86_64::__m512i;
use std::marker::PhantomData;
use std::mem::MaybeUninit;

/// Room for what the rows of a panel share ([`Shared`]).
#[repr(C, align(64))]
pub(in crate::kernels) struct Room([MaybeUninit<u8>; 896]);

impl Room {
    /// An empty one.
    pub const fn new() -> Room {
        Room([MaybeUninit::uninit(); 896])
    }
}

/// What is told of the ends of rows of a block, which lie at one distance.
#[derive(Clone, Copy)]
pub(in crate::kernels) struct Told {
    residual: Option<Addend>,
    target: Numbers,
    /// Distance of rows in residual and target.
    apart: usize,
    /// As [`Ending::ahead`].
    ahead: usize,
    shared: *const Room,
}

impl Told {
    /// Of an ending, and what [`Chosen::share`] has written for its columns.
    #[inline]
    pub fn of(ending: &Ending<'_>, shared: &Room) -> Told {
        let Ending { residual, target, apart, ahead, .. } = *ending;
        Told { residual, target, apart, ahead, shared }
    }

    /// The same of rows at this distance that begin so many numbers behind the first, and what their columns share.
    #[inline(always)]
    pub fn at(&self, start: usize, apart: usize, shared: &Room) -> Told {
        let residual = self.residual.map(|residual| Addend { numbers: residual.numbers.from(start), ..residual });
        Told { residual, target: self.target.from(start), apart, ahead: self.ahead, shared }
    }
}

/// Ends so many rows, as is told, whose sums lie [`BLOCK`] numbers apart.
pub(in crate::kernels) type EndRows = unsafe fn(&Told, *const f32, usize);

/// What ends the rows of a kind of endings.
#[derive(Clone, Copy)]
pub(in crate::kernels) struct Chosen {
    share: unsafe fn(&Ending<'_>, &mut Room),
    pub strips: &'static Strips,
    /// The same of the first half of the columns alone, where there are no more.
    pub halves: Option<&'static Halves>,
    /// And of the first three quarters.
    pub three_quarters: Option<&'static Strips>,
    pub beside: &'static Beside,
    /// Ends rows whose sums are in memory, where that is faster than the ending's own form: not where integers become bf16.
    pub rows: Option<EndRows>,
}

impl Chosen {
    /// Writes what the rows of an ending share; endings of one `Chosen` differ in places and numbers alone.
    ///
    /// # Safety
    /// The ending has the kind that was chosen for, on a machine with the instructions.
    pub unsafe fn share(self, ending: &Ending<'_>, room: &mut Room) {
        assert!(ending.columns == BLOCK && (ending.bias.is_empty() || ending.bias.len() >= BLOCK));
        // SAFETY: the caller's promise; there is a number for each column (bias: just checked).
        unsafe { (self.share)(ending, room) };
    }
}

/// Ends in registers `V`.
struct InRegisters<V, S, A, F, W>(PhantomData<(V, S, A, F, W)>);

impl<V: Wide, S: Summed, A: Added, F: Applied, W: Written> InRegisters<V, S, A, F, W> {
    /// # Safety
    /// As [`Shared::of`], of this kind, on a machine with AVX-512 (F, BW, DQ, VL).
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
    unsafe fn share(ending: &Ending<'_>, room: &mut Room) {
        const { assert!(size_of::<Shared<V>>() <= size_of::<Room>() && align_of::<Shared<V>>() <= align_of::<Room>()) }
        let Some(added) = A::of(ending.residual) else { return debug_assert!(false, "an ending of another kind") };
        // SAFETY: the caller's promise; the room is large enough (just checked).
        unsafe {
            let shared = Shared::<V>::of::<S, A, F, W>(ending, added, V::LANES);
            room.0.as_mut_ptr().cast::<Shared<V>>().write(shared);
        }
    }

    /// # Safety
    /// What is told is of this kind, and was shared, on a machine with AVX-512 (F, BW, DQ, VL); there are sums for the rows.
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
    unsafe fn rows(told: &Told, sums: *const f32, count: usize) {
        // SAFETY: the caller's promise.
        unsafe { Self::each_row(told, sums, count) }
    }

    /// # Safety
    /// What is told is of this kind, and was shared, on a machine with what the registers need; there are sums for the rows.
    #[inline(always)]
    unsafe fn each_row(told: &Told, sums: *const f32, count: usize) {
        // SAFETY: the caller's promise.
        unsafe {
            let Some(mut rows) = Rows::<V, S, A, F, W>::of(told, (sums, 0), &Runs::one(count)) else {
                return debug_assert!(false, "an ending of another kind");
            };
            rows.end_rows(count);
        }
    }
}

/// Rows that are ended one after the other.
struct Rows<V, S, A, F, W> {
    shared: Shared<V>,
    added: A,
    to: W,
    apart: usize,
    ahead: usize,
    /// Where the next row lies, its sums, and rows that are left of its run, if that is not the only one.
    at: usize,
    sums: *const f32,
    left: usize,
    /// As [`Runs`].
    each: usize,
    skipped: usize,
    farther: isize,
    form: PhantomData<(S, F)>,
}

impl<V: Wide, S: Summed, A: Added, F: Applied, W: Written> Rows<V, S, A, F, W> {
    /// # Safety
    /// What is told was shared, if it is of this kind. The first row is so many behind the one that was told of.
    #[inline(always)]
    unsafe fn of(told: &Told, (sums, row): (*const f32, usize), runs: &Runs) -> Option<Self> {
        let &Told { residual, target, apart, ahead, shared } = told;
        let (added, to) = (A::of(residual)?, W::of(target)?);
        // SAFETY: the caller's promise. A copy, so that nothing of it is read again behind what is written.
        let shared = unsafe { *shared.cast::<Shared<V>>() };
        let &Runs { before, first, each, skipped, farther, .. } = runs;
        let (sums, skipped) = (sums.wrapping_add(before * BLOCK), skipped * BLOCK);
        let (at, ahead, left, form) = (row * apart, ahead * apart, first, PhantomData);
        Some(Rows { shared, added, to, apart, ahead, at, sums, left, each, skipped, farther, form })
    }

    /// Whether all rows lie at one distance.
    #[inline(always)]
    fn are_one_run(&self) -> bool {
        self.each == usize::MAX
    }

    /// Ends the next so many of rows that are one run.
    ///
    /// # Safety
    /// As [`RowByRow::end_rows`].
    #[inline(always)]
    unsafe fn end_of_run(&mut self, rows: usize) {
        // SAFETY: the caller's promise.
        unsafe {
            // Counted for two together, as there are between the steps of most blocks.
            for _ in 0..rows / 2 {
                self.end_row(0);
                self.end_row(1);
                self.go_on(2);
            }
            if !rows.is_multiple_of(2) {
                self.end_row(0);
                self.go_on(1);
            }
        }
    }

    #[inline(always)]
    fn go_on(&mut self, rows: usize) {
        self.at += rows * self.apart;
        self.sums = self.sums.wrapping_add(rows * BLOCK);
    }

    /// Ends the next row of any run. Where one ends is hardly foreseen, so nothing branches for it.
    ///
    /// # Safety
    /// As [`RowByRow::end_rows`].
    #[inline(always)]
    unsafe fn end_next(&mut self) {
        // SAFETY: the caller's promise.
        unsafe { self.end_row(0) };
        self.go_on(1);
        self.left -= 1;
        if self.left == 0 {
            self.left = self.each;
            self.at = self.at.wrapping_add_signed(self.farther);
            self.sums = self.sums.wrapping_add(self.skipped);
        }
    }

    /// Ends a row of the run, so many behind the next.
    ///
    /// # Safety
    /// As [`RowByRow::end_rows`].
    #[inline(always)]
    unsafe fn end_row(&self, row: usize) {
        let &Rows { ref shared, added, to, apart, ahead, .. } = self;
        let (at, sums) = (self.at + row * apart, self.sums.wrapping_add(row * BLOCK));
        // SAFETY: the caller's promise.
        unsafe {
            if ahead > 0 {
                block::ask(added, to, at + ahead);
            }
            let pair = [V::load(sums), V::load(sums.add(V::LANES))];
            let mut pair = shared.pair::<S, A, F, W>(pair, added, at);
            shared.apply::<F, W, PAIR>(&mut pair);
            shared.write::<F, W, true>(to, [at, at + V::LANES], pair);
        }
    }
}

impl<V: Wide, S: Summed, A: Added, F: Applied, W: Written> RowByRow for Rows<V, S, A, F, W> {
    #[inline(always)]
    unsafe fn begin(pending: &Pending) -> Option<Self> {
        // SAFETY: the caller's promise.
        unsafe {
            let Later { told, runs, .. } = &*pending.ends;
            Rows::of(&*told.cast::<Told>(), (pending.sums, pending.row), runs)
        }
    }

    #[inline(always)]
    unsafe fn end_rows(&mut self, rows: usize) {
        // SAFETY: the caller's promise.
        unsafe {
            if self.are_one_run() {
                return self.end_of_run(rows);
            }
            for _ in 0..rows {
                self.end_next();
            }
        }
    }

    #[inline(always)]
    unsafe fn end_rows_before(&mut self, sums: *const f32, mut left: usize) -> usize {
        // SAFETY: the caller's promise.
        unsafe {
            if self.are_one_run() {
                let before = sums.addr().saturating_sub(self.sums.addr()).div_ceil(BLOCK * size_of::<f32>());
                let some = left.min(before);
                self.end_of_run(some);
                return left - some;
            }
            while left > 0 && self.sums < sums {
                self.end_next();
                left -= 1;
            }
        }
        left
    }
}

/// Ends the rows of strips, whose sums are still in registers.
struct OfStrips<V, S, A, F, W> {
    // A copy, as in `Rows`.
    shared: Shared<V>,
    added: A,
    to: W,
    apart: usize,
    ahead: usize,
    form: PhantomData<(S, F)>,
}

impl<V: Wide, S: Summed, A: Added, F: Applied, W: Written> End for OfStrips<V, S, A, F, W> {
    const BEGINS: bool = S::HAS_BEGUN && !W::FOLDED;

    #[inline(always)]
    unsafe fn of(told: *mut u8) -> Option<Self> {
        // SAFETY: the caller's promise: what is told was shared, and if it is of this kind, in these registers.
        unsafe {
            let &Told { residual, target, apart, ahead, shared } = &*told.cast_const().cast::<Told>();
            let (added, to) = (A::of(residual)?, W::of(target)?);
            Some(OfStrips { shared: *shared.cast::<Shared<V>>(), added, to, apart, ahead, form: PhantomData })
        }
    }

    #[inline(always)]
    unsafe fn begin(&self) -> [__m512i; PAIR] {
        // SAFETY: the caller's promise: there is a number for each column.
        unsafe { self.shared.shifts() }
    }

    #[inline(always)]
    unsafe fn end<const ROWS: usize, const WHOLE: bool>(
        &self,
        row: usize,
        low: [__m512i; ROWS],
        high: [__m512i; ROWS],
    ) {
        const { assert!(WHOLE || W::HALVES) }
        let &OfStrips { ref shared, added, to, apart, ahead, .. } = self;
        // SAFETY: the caller's promise.
        unsafe {
            if ahead > 0 {
                for row in row..row + ROWS {
                    block::ask(added, to, (row + ahead) * apart);
                }
            }
            let start = row * apart;
            rows!(r in ROWS => {
                let at = start + r * apart;
                if WHOLE {
                    let sums = [V::of_bits(low[r]), V::of_bits(high[r])];
                    let mut pair = shared.pair::<S, A, F, W>(sums, added, at);
                    shared.apply::<F, W, PAIR>(&mut pair);
                    shared.write::<F, W, true>(to, [at, at + V::LANES], pair);
                } else {
                    shared.end_first::<S, A, F, W>(V::of_bits(low[r]), (added, to), at);
                }
            });
        }
    }

    #[inline(always)]
    unsafe fn end_three_quarters<const ROWS: usize>(&self, row: usize, first: [__m512i; ROWS], last: [__m512i; ROWS]) {
        const { assert!(W::HALVES && !S::SCALED && !F::BIASED, "nothing is known of the last 16 columns") }
        let &OfStrips { ref shared, added, to, apart, ahead, .. } = self;
        // SAFETY: the caller's promise.
        unsafe {
            rows!(r in ROWS => {
                let at = (row + r) * apart;
                if ahead > 0 {
                    block::ask(added, to, at + ahead * apart);
                }
                // All that is added is read before the first is written.
                let places = [at, at + V::LANES / 2];
                let first = shared.number::<S, A, F, W>(0, V::of_bits(first[r]), added, places[0]);
                let mut pair = [first, shared.number::<S, A, F, W>(1, V::of_bits(last[r]), added, places[1])];
                shared.apply::<F, W, PAIR>(&mut pair);
                shared.write::<F, W, false>(to, places, pair);
            });
        }
    }
}

/// Ends rows in registers that round to bf16 by themselves.
///
/// # Safety
/// As [`InRegisters::each_row`], on a machine that has AVX-512 (F, BW, DQ, VL) and BF16.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma,f16c")]
unsafe fn rounded_rows<S: Summed, A: Added, F: Applied, W: Written>(told: &Told, sums: *const f32, count: usize) {
    // SAFETY: the caller's promise.
    unsafe { InRegisters::<Avx512Bf16, S, A, F, W>::each_row(told, sums, count) }
}

/// What ends sums of products of integers, on a machine with AVX-512 VNNI.
pub(in crate::kernels) fn of_integers(kind: Kind, isa: Isa) -> Option<Chosen> {
    fn chosen<A: Added, W: Written>() -> Chosen {
        type Ends<A, W> = InRegisters<Avx512, Integers, A, Plain, W>;
        Chosen {
            share: Ends::<A, W>::share,
            strips: u8_strips::<OfStrips<Avx512, Begun, A, Plain, W>>(),
            halves: None,
            three_quarters: None,
            beside: beside_u8::<Rows<Avx512, Integers, A, Plain, W>>(),
            rows: Some(Ends::<A, W>::rows),
        }
    }
    fn rounding<A: Added>() -> Chosen {
        type Strips<A> = OfStrips<Avx512Bf16, Begun, A, Plain, *mut bf16>;
        Chosen {
            share: InRegisters::<Avx512Bf16, Integers, A, Plain, *mut bf16>::share,
            strips: u8_strips_to_bf16::<Strips<A>>(),
            halves: Some(u8_halves_to_bf16::<Strips<A>>()),
            three_quarters: None,
            beside: beside_u8::<Rows<Avx512Bf16, Integers, A, Plain, *mut bf16>>(),
            rows: None,
        }
    }
    if kind.curved.is_some() {
        return None;
    }
    Some(match kind {
        Kind { is_wide: true, scaled: true, added, written: Width::Bf16, .. } if isa.has_avx512_bf16() => match added {
            None => rounding::<()>(),
            Some(Width::Bf16) => rounding::<*mut bf16>(),
            Some(_) => return None,
        },
        Kind { is_wide: true, scaled: true, added: None, written: Width::U8, bare: true, .. } => {
            chosen::<(), Near<true>>()
        }
        Kind { is_wide: true, scaled: true, added: Some(Width::U8), written: Width::U8, bare: true, .. } => {
            chosen::<Quantized, Near<true>>()
        }
        Kind { is_wide: true, scaled: true, added: None, written: Width::U8, folded: true, .. } => chosen::<(), Near>(),
        Kind { is_wide: true, scaled: true, added: None, written: Width::U8, folded: false, .. } => {
            chosen::<(), *mut u8>()
        }
        Kind { is_wide: true, scaled: true, added: Some(Width::U8), written: Width::U8, folded: true, .. } => {
            chosen::<Quantized, Near>()
        }
        Kind { is_wide: true, scaled: true, added: Some(Width::U8), written: Width::U8, folded: false, .. } => {
            chosen::<Quantized, *mut u8>()
        }
        _ => return None,
    })
}

/// What ends sums of products of bf16, on a machine with AVX-512 BF16.
pub(in crate::kernels) fn of_bf16(kind: Kind, _: Isa) -> Option<Chosen> {
    fn chosen<A: Added, W: Written>(rows: EndRows, beside: &'static Beside) -> Chosen {
        // Strips have both bounds: each form of them is 32 functions, with those of fewer columns.
        type Bounded = Unbiased<true, true>;
        type Strips<A, W> = OfStrips<Avx512Bf16, Floats, A, Bounded, W>;
        Chosen {
            share: InRegisters::<Avx512Bf16, Floats, A, Bounded, W>::share,
            strips: bf16_strips::<Strips<A, W>>(),
            halves: Some(bf16_halves::<Strips<A, W>>()),
            three_quarters: Some(bf16_three_quarters::<Strips<A, W>>()),
            beside,
            rows: Some(rows),
        }
    }
    const fn beside<S: Summed, A: Added, F: Applied, W: Written>() -> &'static Beside {
        beside_bf16::<Rows<Avx512Bf16, S, A, F, W>>()
    }
    // Their sums have begun with a bias.
    let bounds = kind.unbiased?;
    let rows: EndRows = block::with_unbiased_types!(kind, bounds, rounded_rows);
    let beside: fn() -> &'static Beside = block::with_unbiased_types!(kind, bounds, beside);
    let beside = beside();
    Some(match kind {
        Kind { is_wide: true, scaled: false, added: None, written: Width::Bf16, .. } => {
            chosen::<(), *mut bf16>(rows, beside)
        }
        Kind { is_wide: true, scaled: false, added: None, written: Width::F32, .. } => {
            chosen::<(), *mut f32>(rows, beside)
        }
        Kind { is_wide: true, scaled: false, added: Some(Width::Bf16), written: Width::Bf16, .. } => {
            chosen::<*mut bf16, *mut bf16>(rows, beside)
        }
        Kind { is_wide: true, scaled: false, added: Some(Width::F32), written: Width::F32, .. } => {
            chosen::<*mut f32, *mut f32>(rows, beside)
        }
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::super::{Scaling, UNBOUNDED};
    use super::*;
    use crate::kernels::epilogue::Grid;
    use crate::matrix::{Begin, Left, Many, Share, Sums};

    const APART: usize = 40;
    /// Of the rows of a block, and what lies between some of them.
    const LEN: usize = 2 * BLOCK * APART;

    /// Numbers of every kind for the rows of a block.
    struct Places {
        floats: Vec<f32>,
        narrow: Vec<bf16>,
        bytes: Vec<u8>,
    }

    impl Places {
        fn new(number: &dyn Fn(usize) -> f32) -> Places {
            let floats: Vec<f32> = (0..LEN).map(number).collect();
            let narrow = floats.iter().map(|&float| bf16::from_f32(float)).collect();
            let bytes = (0..LEN).map(|at| (at * 31 % 256) as u8).collect();
            Places { floats, narrow, bytes }
        }

        fn of(&mut self, width: Width) -> Numbers {
            match width {
                Width::F32 => Numbers::F32(self.floats.as_mut_ptr()),
                Width::Bf16 => Numbers::Bf16(self.narrow.as_mut_ptr()),
                Width::U8 => Numbers::U8(self.bytes.as_mut_ptr()),
            }
        }

        fn bits(&self) -> Vec<u32> {
            let narrow = self.narrow.iter().map(|number| u32::from(number.to_bits()));
            let bytes = self.bytes.iter().map(|&byte| u32::from(byte));
            self.floats.iter().map(|number| number.to_bits()).chain(narrow).chain(bytes).collect()
        }
    }

    /// Strips of no steps on sums so far do nothing but end them.
    fn check(of: fn(Kind, Isa) -> Option<Chosen>, integers: bool) -> usize {
        let isa = Isa::detect();
        let number = |seed: usize, at: usize| ((at * 7919 + seed * 104_729) % 2003) as f32 / 1001.5 - 1.0;
        let each = |seed: usize, by: f32| -> [f32; BLOCK] { std::array::from_fn(|at| by * number(seed, at)) };
        let (added, scales, bias) = (each(1, 3e5).map(|number| number as i32), each(2, 1e-4), each(3, 20.0));
        let sums: Sums<f32> = Sums(std::array::from_fn(|at| match integers {
            true => f32::from_bits((1e6 * number(4, at)) as i32 as u32),
            false => 100.0 * number(4, at),
        }));
        let widths = [Width::F32, Width::Bf16, Width::U8];
        let kinds = widths.into_iter().flat_map(|written| {
            let residuals = [None].into_iter().chain(widths.map(Some));
            let rounded = [(true, true), (true, false), (false, false)];
            residuals.flat_map(move |added| rounded.map(|rounded| (written, added, rounded)))
        });
        let mut found = 0;
        for ((written, residual, (is_rounded, is_small)), ahead) in kinds.flat_map(|kind| [(kind, 0), (kind, BLOCK)]) {
            let mut read = Places::new(&|at| 30.0 * number(5, at));
            let grid = Grid { inverse: 1.0 / 0.4, low: -9.0, high: 246.0 };
            let residual = residual.map(|residual| Addend { numbers: read.of(residual), zero: 120.0, scale: 0.25 });
            let [mut want, mut got] = [(); 2].map(|()| Places::new(&|at| at as f32));
            let ending_of = |target: Numbers, rows: usize| Ending {
                integers: integers.then_some(Scaling { added: &added, scales: &scales }),
                residual,
                bounds: if written == Width::U8 { UNBOUNDED } else { (-15.0, 20.0) },
                quantize: (written == Width::U8).then_some((grid, 9.0)),
                is_rounded,
                is_small,
                ahead,
                ..Ending::new((rows, BLOCK), BLOCK, if integers && is_rounded { &bias } else { &[] }, target, APART)
            };
            let Some(chosen) = ending_of(got.of(written), BLOCK).kind_in_registers(isa).and_then(|kind| of(kind, isa))
            else {
                continue;
            };
            found += 1;
            for height in 1..=chosen.strips.len() {
                let mut room = Room::new();
                let left = Left::of_tiles([std::ptr::null(); 2], 0, &[]);
                // Of whole strips, all but the first.
                for row in (height..=BLOCK - height).step_by(height) {
                    let ending = ending_of(got.of(written), BLOCK);
                    // SAFETY: the places have the rows, and the machine the instructions of what was chosen for it.
                    unsafe {
                        chosen.share(&ending, &mut room);
                        let mut told = Told::of(&ending, &room);
                        let (panel, told) = (std::ptr::null(), std::ptr::from_mut(&mut told).cast());
                        let begin = Begin::sums((&raw const sums).cast());
                        let many = Many { row, strips: 1 };
                        chosen.strips[height - 1](std::ptr::null(), &left, panel, begin, told, many, &Share::NOTHING);
                        let rows = &mut sums.0[row * BLOCK..][..height * BLOCK].to_vec();
                        let ending = Ending {
                            residual: residual.map(|of| Addend { numbers: of.numbers.from(row * APART), ..of }),
                            ..ending_of(want.of(written).from(row * APART), height)
                        };
                        ending.run(isa, rows);
                    }
                }
                assert!(want.bits() == got.bits(), "{height} rows, rounded: {is_rounded}, ahead: {ahead}");
            }
            assert!(want.bits() != Places::new(&|at| at as f32).bits(), "nothing was written");
            assert_eq!(chosen.halves.is_none(), written == Width::U8);
            assert_eq!(chosen.three_quarters.is_none(), integers);
            // The same of fewer columns.
            let halves = chosen.halves.map(|halves| (BLOCK / 2, &halves[..]));
            let three_quarters = chosen.three_quarters.map(|strips| (BLOCK / 4 * 3, &strips[..]));
            for (columns, strips) in [halves, three_quarters].into_iter().flatten() {
                let [mut want, mut got] = [(); 2].map(|()| Places::new(&|at| at as f32));
                for (height, strip) in (1..).zip(strips) {
                    let (mut room, left) = (Room::new(), Left::of_tiles([std::ptr::null(); 2], 0, &[]));
                    for row in (height..=BLOCK - height).step_by(height) {
                        let ending = ending_of(got.of(written), BLOCK);
                        // SAFETY: as above.
                        unsafe {
                            chosen.share(&ending, &mut room);
                            let mut told = Told::of(&ending, &room);
                            let told = std::ptr::from_mut(&mut told).cast();
                            let (begin, many) = (Begin::sums((&raw const sums).cast()), Many { row, strips: 1 });
                            let nothing = std::ptr::null();
                            strip(nothing, &left, nothing, begin, told, many, &Share::NOTHING);
                            let ending = Ending {
                                columns,
                                residual: residual.map(|of| Addend { numbers: of.numbers.from(row * APART), ..of }),
                                ..ending_of(want.of(written).from(row * APART), height)
                            };
                            ending.run(isa, &mut sums.0[row * BLOCK..][..height * BLOCK].to_vec());
                        }
                    }
                    let place = format!("{columns} columns of {height} rows, rounded: {is_rounded}, ahead: {ahead}");
                    assert!(want.bits() == got.bits(), "{place}");
                }
            }
            assert_eq!(chosen.rows.is_none(), integers && written == Width::Bf16);
            if isa.has_avx512_bf16() {
                // Lines of 14 pixels and 2 of a border, from the first pixel, within a line, in the border on, and one run.
                let lines = Runs { rows: 0, before: 0, first: 14, each: 14, skipped: 2, farther: 3 * APART as isize };
                let later = [
                    Runs { rows: 28, ..lines },
                    Runs { rows: 13, first: 4, ..lines },
                    Runs { rows: 17, before: 1, ..lines },
                    // Runs that begin before the next row of the one before would.
                    Runs { rows: 26, first: 12, farther: 32 - APART as isize, ..lines },
                    Runs { rows: 0, ..lines },
                    Runs::one(BLOCK - 1),
                ];
                for runs in later {
                    let [mut all, mut in_runs] = [(); 2].map(|()| Places::new(&|at| at as f32));
                    let (ending, mut room) = (ending_of(in_runs.of(written), BLOCK), Room::new());
                    // SAFETY: as above.
                    unsafe {
                        chosen.share(&ending, &mut room);
                        let told = Told::of(&ending, &room);
                        let later = Later { beside: chosen.beside, told: (&raw const told).cast(), runs };
                        let sums = sums.0.as_ptr().cast_mut();
                        (chosen.beside.alone)(&Pending { ends: &later, sums, are_in_tiles: false, row: 0 });
                    }
                    let (mut row, mut at, mut left, mut last) = (runs.before, 0, runs.first, 0);
                    for _ in 0..runs.rows {
                        let residual = residual.map(|of| Addend { numbers: of.numbers.from(at), ..of });
                        let ending = Ending { residual, ..ending_of(all.of(written).from(at), 1) };
                        // SAFETY: as above.
                        unsafe { ending.run(isa, &mut sums.0[row * BLOCK..][..BLOCK].to_vec()) };
                        (row, at, left, last) = (row + 1, at + APART, left - 1, at);
                        if left == 0 {
                            (row, at, left) = (row + runs.skipped, at.wrapping_add_signed(runs.farther), runs.each);
                        }
                    }
                    assert!(all.bits() == in_runs.bits(), "{runs:?}, rounded: {is_rounded}, ahead: {ahead}");
                    assert_eq!(last, runs.extent(APART), "{runs:?}");
                }
            }
            let Some(rows) = chosen.rows else { continue };
            // All rows but the first, from there on.
            let [mut all, mut from_memory] = [(); 2].map(|()| Places::new(&|at| at as f32));
            let (ending, mut room) = (ending_of(from_memory.of(written), BLOCK), Room::new());
            // SAFETY: as above; there are sums for the rows.
            unsafe {
                chosen.share(&ending, &mut room);
                let told = Told::of(&ending, &Room::new()).at(APART, APART, &room);
                rows(&told, sums.0[BLOCK..].as_ptr(), BLOCK - 1);
            }
            let residual = residual.map(|of| Addend { numbers: of.numbers.from(APART), ..of });
            let ending = Ending { residual, ..ending_of(all.of(written).from(APART), BLOCK - 1) };
            // SAFETY: as above.
            unsafe { ending.run(isa, &mut sums.0[BLOCK..].to_vec()) };
            assert!(all.bits() == from_memory.bits(), "from memory, rounded: {is_rounded}, ahead: {ahead}");
        }
        found
    }

    #[test]
    fn rows_end_in_registers_as_they_do_from_memory() {
        if is_x86_feature_detected!("avx512vnni") && Isa::detect().has_avx512() {
            let found = check(of_integers, true);
            assert_eq!(found, if Isa::detect().has_avx512_bf16() { 24 } else { 12 });
        } else {
            println!("skipped: ends of integers, for this machine has no AVX-512 VNNI");
        }
        if Isa::detect().has_avx512_bf16() {
            assert_eq!(check(of_bf16, false), 24);
        } else {
            println!("skipped: ends of bf16, for this machine has no AVX-512 BF16");
        }
    }
}
