//! Ends as wide as two registers, which nearly all are, or between one and two, in the forms that most of those have: sums
//! of floats or of integers, a bias, a residual, bounds, and what is written. What is done to a row is known to the
//! compiler, and what all rows share stays in registers.

use super::gate::{self, Gate};
use super::{Addend, Ending, PAIR, Place, TOGETHER, UNBOUNDED};
use crate::prefetch;
use crate::real::Numbers;
use crate::vector::{Bytes, Vector};
use half::bf16;

/// What sums are.
pub(super) trait Summed {
    /// Whether they are the bits of integers, which are scaled.
    const SCALED: bool;
    /// Whether they have begun with what is added to sums of integers.
    const HAS_BEGUN: bool = false;
}

/// Sums in f32.
pub(super) struct Floats;
/// Sums in i32.
pub(super) struct Integers;

/// Sums in i32 that have begun with what is added to them.
#[cfg(target_arch = "x86_64")]
pub(super) struct Begun;

#[cfg(target_arch = "x86_64")]
impl Summed for Begun {
    const SCALED: bool = true;
    const HAS_BEGUN: bool = true;
}

impl Summed for Floats {
    const SCALED: bool = false;
}

impl Summed for Integers {
    const SCALED: bool = true;
}

/// What is read of a row to be added to it: numbers `(x - zero) · scale`.
pub(super) trait Added: Copy {
    fn of(residual: Option<Addend>) -> Option<Self>;

    /// Where a number of it is, if something is read.
    fn place(self, _: usize) -> Option<*const u8> {
        None
    }

    fn zero(self) -> f32 {
        0.0
    }

    fn scale(self) -> f32 {
        1.0
    }

    /// `number` and what is read.
    /// # Safety
    /// As [`Vector::load`].
    unsafe fn add<V: Vector>(self, at: usize, number: V) -> V;

    /// Both registers of a row and what is read.
    /// # Safety
    /// As [`Vector::load`] of both registers.
    #[inline(always)]
    unsafe fn add_pair<V: Vector>(self, at: usize, [first, second]: [V; PAIR]) -> [V; PAIR] {
        // SAFETY: the caller's promise.
        unsafe { [self.add(at, first), self.add(at + V::LANES, second)] }
    }

    /// `number` and `factor · x`.
    /// # Safety
    /// As [`Vector::load`].
    unsafe fn add_product<V: Vector>(self, at: usize, number: V, factor: V) -> V;
}

impl Added for () {
    fn of(_: Option<Addend>) -> Option<()> {
        Some(())
    }

    #[inline(always)]
    unsafe fn add<V: Vector>(self, _: usize, number: V) -> V {
        number
    }

    #[inline(always)]
    unsafe fn add_product<V: Vector>(self, _: usize, number: V, _: V) -> V {
        number
    }
}

/// What is done to sums before they are written.
pub(super) trait Applied {
    /// The function of sums and bias that is written is a [`Gate`]; there is none where this is `None`. Numbers with one have no bounds.
    const CURVED: Option<bool>;
    /// A bias is added to floats: it is not where sums have begun with it, or there is none.
    const BIASED: bool = true;
    /// Whether there is a bound below and one above.
    const LOW: bool = Self::CURVED.is_none();
    const HIGH: bool = Self::CURVED.is_none();
}

/// They are written as they are.
pub(super) struct Plain;
/// Through a [`Gate`] of one factor.
pub(super) struct Straight;
/// Through a [`Gate`] of three factors.
pub(super) struct Curved;

impl Applied for Plain {
    const CURVED: Option<bool> = None;
}

/// The same without a bias, and with those bounds that there are.
pub(super) struct Unbiased<const LOW: bool, const HIGH: bool>;

impl<const LOW: bool, const HIGH: bool> Applied for Unbiased<LOW, HIGH> {
    const CURVED: Option<bool> = None;
    const BIASED: bool = false;
    const LOW: bool = LOW;
    const HIGH: bool = HIGH;
}

impl Applied for Straight {
    const CURVED: Option<bool> = Some(false);
}

impl Applied for Curved {
    const CURVED: Option<bool> = Some(true);
}

/// What is done to a row before it is written, in registers.
#[derive(Clone, Copy)]
struct Limits<V> {
    low: V,
    high: V,
    inverse: V,
    bytes: Bytes,
}

impl<V: Vector> Limits<V> {
    /// # Safety
    /// As [`Vector`].
    #[inline(always)]
    unsafe fn of(ending: &Ending<'_>) -> Limits<V> {
        let (low, high) = ending.bounds;
        let (bytes, inverse) = (bytes_of(ending), ending.quantize.map_or(1.0, |(grid, _)| grid.inverse));
        // SAFETY: the caller's promise.
        unsafe { Limits { low: V::splat(low), high: V::splat(high), inverse: V::splat(inverse), bytes } }
    }
}

/// How the bytes that an ending writes are counted, and their bounds.
fn bytes_of(ending: &Ending<'_>) -> Bytes {
    let (low, high) = ending.bounds;
    let Some((grid, zero)) = ending.quantize else { return Bytes { zero: 0, low: 0, high: 255 } };
    // Rounding keeps the order of numbers: bounds may be rounded themselves.
    let bound = |number: f32| (grid.nearest(number) + zero).clamp(0.0, 255.0) as i16;
    Bytes { zero: zero as i16, low: bound(low), high: bound(high) }
}

/// How a row is written.
pub(super) trait Written: Copy {
    /// Whether the steps from sums of integers to what is written are one product and one sum, which rounds once.
    const FOLDED: bool = false;

    fn of(target: Numbers) -> Option<Self>;

    /// Where a number is written.
    fn place(self, at: usize) -> *const u8;

    /// Whether one register alone can be written, by [`Written::write_first`].
    #[cfg(target_arch = "x86_64")]
    const HALVES: bool = false;

    /// Writes one register.
    ///
    /// # Safety
    /// As [`Vector::store`].
    #[cfg(target_arch = "x86_64")]
    #[expect(private_interfaces, reason = "nobody else writes")]
    unsafe fn write_first<V: Vector, F: Applied>(self, _: usize, _: V, _: &Limits<V>) {
        debug_assert!(false, "no half is written of this");
    }

    /// Writes both registers, which where it is `WIDE` belong one behind the other, within the bounds of `F`.
    ///
    /// # Safety
    /// As [`Vector::store`] of both registers.
    #[expect(private_interfaces, reason = "nobody else writes")]
    unsafe fn write<V: Vector, F: Applied, const WIDE: bool>(
        self,
        at: [usize; PAIR],
        pair: [V; PAIR],
        limits: &Limits<V>,
    );
}

/// # Safety
/// As [`Vector::store`] of both registers.
#[inline(always)]
unsafe fn store_both<V: Vector>([first, second]: [V; PAIR], to: *mut f32) {
    // SAFETY: the caller's promise.
    unsafe {
        first.store(to);
        second.store(to.add(V::LANES));
    }
}

/// # Safety
/// As [`Vector::load`] of both registers.
#[inline(always)]
unsafe fn load_both<V: Vector>(from: *const f32) -> [V; PAIR] {
    // SAFETY: the caller's promise.
    unsafe { [V::load(from), V::load(from.add(V::LANES))] }
}

macro_rules! floats {
    ($($number:ty, $variant:ident, $load:ident, $load_pair:expr, $store:ident, $store_pair:expr);*) => {
        $(
            impl Added for *mut $number {
                #[inline(always)]
                fn of(residual: Option<Addend>) -> Option<Self> {
                    match residual {
                        Some(Addend { numbers: Numbers::$variant(start), .. }) => Some(start),
                        _ => None,
                    }
                }

                #[inline(always)]
                fn place(self, at: usize) -> Option<*const u8> {
                    Some(self.wrapping_add(at).cast_const().cast())
                }

                #[inline(always)]
                unsafe fn add<V: Vector>(self, at: usize, number: V) -> V {
                    // SAFETY: the caller's promise, here and below.
                    unsafe { number.plus(V::$load(self.wrapping_add(at))) }
                }

                #[inline(always)]
                unsafe fn add_pair<V: Vector>(self, at: usize, [first, second]: [V; PAIR]) -> [V; PAIR] {
                    // SAFETY: as above.
                    unsafe {
                        let [own_first, own_second] = $load_pair(self.wrapping_add(at).cast_const());
                        [first.plus(own_first), second.plus(own_second)]
                    }
                }

                #[inline(always)]
                unsafe fn add_product<V: Vector>(self, at: usize, number: V, factor: V) -> V {
                    // SAFETY: as above.
                    unsafe { number.plus_product(V::$load(self.wrapping_add(at)), factor) }
                }
            }

            impl Written for *mut $number {
                #[inline(always)]
                fn of(target: Numbers) -> Option<Self> {
                    match target {
                        Numbers::$variant(start) => Some(start),
                        _ => None,
                    }
                }

                #[inline(always)]
                fn place(self, at: usize) -> *const u8 {
                    self.wrapping_add(at).cast_const().cast()
                }

                #[cfg(target_arch = "x86_64")]
                const HALVES: bool = true;

                #[cfg(target_arch = "x86_64")]
                #[inline(always)]
                #[expect(private_interfaces, reason = "as above")]
                unsafe fn write_first<V: Vector, F: Applied>(self, at: usize, mut first: V, limits: &Limits<V>) {
                    // SAFETY: as above.
                    unsafe {
                        if F::LOW {
                            first = first.at_least(limits.low);
                        }
                        if F::HIGH {
                            first = first.at_most(limits.high);
                        }
                        first.$store(self.wrapping_add(at));
                    }
                }

                #[inline(always)]
                #[expect(private_interfaces, reason = "as above")]
                unsafe fn write<V: Vector, F: Applied, const WIDE: bool>(
                    self,
                    at: [usize; PAIR],
                    [mut first, mut second]: [V; PAIR],
                    limits: &Limits<V>,
                ) {
                    // SAFETY: as above.
                    unsafe {
                        if F::LOW {
                            (first, second) = (first.at_least(limits.low), second.at_least(limits.low));
                        }
                        if F::HIGH {
                            (first, second) = (first.at_most(limits.high), second.at_most(limits.high));
                        }
                        if WIDE {
                            return $store_pair([first, second], self.wrapping_add(at[0]));
                        }
                        first.$store(self.wrapping_add(at[0]));
                        second.$store(self.wrapping_add(at[1]));
                    }
                }
            }
        )*
    };
}
floats!(f32, F32, load, load_both::<V>, store, store_both::<V>; bf16, Bf16, widen, V::widen_pair, narrow, V::narrow_pair);

/// Quantised numbers.
#[derive(Clone, Copy)]
pub(super) struct Quantized {
    start: *mut u8,
    zero: f32,
    scale: f32,
}

impl Added for Quantized {
    #[inline(always)]
    fn of(residual: Option<Addend>) -> Option<Self> {
        match residual {
            Some(Addend { numbers: Numbers::U8(start), zero, scale }) => Some(Quantized { start, zero, scale }),
            _ => None,
        }
    }

    #[inline(always)]
    fn place(self, at: usize) -> Option<*const u8> {
        Some(self.start.wrapping_add(at))
    }

    fn zero(self) -> f32 {
        self.zero
    }

    fn scale(self) -> f32 {
        self.scale
    }

    #[inline(always)]
    unsafe fn add_product<V: Vector>(self, at: usize, number: V, factor: V) -> V {
        // SAFETY: as above.
        unsafe { number.plus_product(V::widen_u8(self.start.wrapping_add(at)), factor) }
    }

    #[inline(always)]
    unsafe fn add<V: Vector>(self, at: usize, number: V) -> V {
        // SAFETY: as above.
        unsafe {
            let steps = V::widen_u8(self.start.wrapping_add(at)).minus(V::splat(self.zero));
            number.plus(steps.times(V::splat(self.scale)))
        }
    }
}

impl Written for *mut u8 {
    #[inline(always)]
    fn of(target: Numbers) -> Option<Self> {
        match target {
            Numbers::U8(start) => Some(start),
            _ => None,
        }
    }

    #[inline(always)]
    fn place(self, at: usize) -> *const u8 {
        self.wrapping_add(at)
    }

    #[inline(always)]
    #[expect(private_interfaces, reason = "as above")]
    unsafe fn write<V: Vector, F: Applied, const WIDE: bool>(
        self,
        [at, _]: [usize; PAIR],
        pair: [V; PAIR],
        limits: &Limits<V>,
    ) {
        // SAFETY: as above; bytes are written by ends as wide as two registers alone.
        unsafe {
            let [first, second] = pair;
            let pair = [first.times(limits.inverse), second.times(limits.inverse)];
            V::store_pair(pair, limits.bytes, self.wrapping_add(at));
        }
    }
}

/// Bytes of sums that were rounded for speed: `BARE` ones of numbers of at most 31 bits, with no bounds but those of a byte.
#[derive(Clone, Copy)]
pub(super) struct Near<const BARE: bool = false>(*mut u8);

impl<const BARE: bool> Written for Near<BARE> {
    const FOLDED: bool = true;

    #[inline(always)]
    fn of(target: Numbers) -> Option<Self> {
        <*mut u8>::of(target).map(Near)
    }

    #[inline(always)]
    fn place(self, at: usize) -> *const u8 {
        self.0.wrapping_add(at)
    }

    #[inline(always)]
    #[expect(private_interfaces, reason = "as above")]
    unsafe fn write<V: Vector, F: Applied, const WIDE: bool>(
        self,
        [at, _]: [usize; PAIR],
        pair: [V; PAIR],
        limits: &Limits<V>,
    ) {
        // SAFETY: as above.
        unsafe {
            if BARE {
                return V::store_small_pair(pair, self.0.wrapping_add(at));
            }
            let Bytes { low, high, .. } = limits.bytes;
            V::store_bytes_of_pair(pair, (low as u8, high as u8), self.0.wrapping_add(at));
        }
    }
}

/// Which of the forms of this module an ending has.
#[derive(Clone, Copy)]
pub(in crate::kernels) struct Kind {
    /// As wide as two registers.
    pub is_wide: bool,
    pub scaled: bool,
    pub added: Option<Width>,
    pub written: Width,
    /// As [`Written::FOLDED`].
    pub folded: bool,
    /// And is written as bare bytes ([`Near`]).
    #[cfg(target_arch = "x86_64")]
    pub bare: bool,
    /// As [`Applied::CURVED`].
    pub curved: Option<bool>,
    /// [`Unbiased`], with these bounds below and above.
    pub unbiased: Option<(bool, bool)>,
}

/// Of numbers.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(in crate::kernels) enum Width {
    F32,
    Bf16,
    U8,
}

impl Width {
    fn of(numbers: Numbers) -> Option<Width> {
        match numbers {
            Numbers::F32(_) => Some(Width::F32),
            Numbers::Bf16(_) => Some(Width::Bf16),
            Numbers::U8(_) => Some(Width::U8),
            Numbers::I8(_) => None,
        }
    }
}

/// The kind of an ending, if it has one of the forms of this module.
pub(super) fn kind<V: Vector>(ending: &Ending<'_>) -> Option<Kind> {
    let scaled = ending.integers.is_some();
    let written = Width::of(ending.target)?;
    let folded = scaled && written == Width::U8 && ending.is_rounded;
    let added = match ending.residual {
        Some(residual) => Some(Width::of(residual.numbers)?),
        None => None,
    };
    let gate = match ending.function {
        Some(function) => Some(Gate::of(function)?),
        None => None,
    };
    // What is rounded next may be off by a small part of that rounding.
    let may_be_near = folded || written == Width::Bf16 && (!scaled || ending.is_rounded);
    let is_gated = may_be_near && added.is_none() && ending.bounds == UNBOUNDED;
    let is_plain = (gate.is_none() || is_gated) && ending.snap.is_none();
    // A product by a scale and a bias become one operation, which rounds once.
    let is_fused = scaled && !ending.bias.is_empty();
    // Sums of floats that are quantised have a form of their own only as they are.
    let is_known = ending.quantize.is_some() == (written == Width::U8)
        && (scaled || written != Width::U8 && added != Some(Width::U8))
        && (!is_fused || ending.is_rounded);
    let is_wide = ending.columns == PAIR * V::LANES;
    let fits = is_wide || written != Width::U8 && (V::LANES..PAIR * V::LANES).contains(&ending.columns);
    let curved = gate.map(Gate::is_curved);
    let is_unbiased = is_wide && !scaled && curved.is_none() && written != Width::U8 && ending.bias.is_empty();
    let bounds = ending.bounds;
    let unbiased = is_unbiased.then_some((bounds.0 != f32::NEG_INFINITY, bounds.1 != f32::INFINITY));
    (is_plain && is_known && fits).then_some(Kind {
        is_wide,
        scaled,
        added,
        written,
        folded,
        #[cfg(target_arch = "x86_64")]
        bare: folded && ending.is_small && matches!(bytes_of(ending), Bytes { low: 0, high: 255, .. }),
        curved,
        unbiased,
    })
}

/// `$rows::<S, A, F, W>` for a kind.
macro_rules! with_types {
    ($kind:expr, $rows:ident) => {{
        use super::block::{Curved, Floats, Integers, Kind, Near, Plain, Quantized, Straight, Width};
        use half::bf16;
        match $kind {
            Kind { scaled: false, curved: Some(false), .. } => $rows::<Floats, (), Straight, *mut bf16>,
            Kind { scaled: false, curved: Some(true), .. } => $rows::<Floats, (), Curved, *mut bf16>,
            Kind { folded: false, curved: Some(false), .. } => $rows::<Integers, (), Straight, *mut bf16>,
            Kind { folded: false, curved: Some(true), .. } => $rows::<Integers, (), Curved, *mut bf16>,
            Kind { curved: Some(false), .. } => $rows::<Integers, (), Straight, Near>,
            Kind { curved: Some(true), .. } => $rows::<Integers, (), Curved, Near>,
            Kind { scaled: false, added: None, written: Width::F32, .. } => $rows::<Floats, (), Plain, *mut f32>,
            Kind { scaled: false, added: None, .. } => $rows::<Floats, (), Plain, *mut bf16>,
            Kind { scaled: false, added: Some(Width::F32), written: Width::F32, .. } => {
                $rows::<Floats, *mut f32, Plain, *mut f32>
            }
            Kind { scaled: false, added: Some(Width::F32), .. } => $rows::<Floats, *mut f32, Plain, *mut bf16>,
            Kind { scaled: false, written: Width::F32, .. } => $rows::<Floats, *mut bf16, Plain, *mut f32>,
            Kind { scaled: false, .. } => $rows::<Floats, *mut bf16, Plain, *mut bf16>,
            Kind { added: None, written: Width::F32, .. } => $rows::<Integers, (), Plain, *mut f32>,
            Kind { added: None, written: Width::Bf16, .. } => $rows::<Integers, (), Plain, *mut bf16>,
            Kind { added: None, written: Width::U8, folded: true, .. } => $rows::<Integers, (), Plain, Near>,
            Kind { added: None, written: Width::U8, .. } => $rows::<Integers, (), Plain, *mut u8>,
            Kind { added: Some(Width::F32), written: Width::F32, .. } => $rows::<Integers, *mut f32, Plain, *mut f32>,
            Kind { added: Some(Width::F32), written: Width::Bf16, .. } => $rows::<Integers, *mut f32, Plain, *mut bf16>,
            Kind { added: Some(Width::F32), written: Width::U8, folded: true, .. } => {
                $rows::<Integers, *mut f32, Plain, Near>
            }
            Kind { added: Some(Width::F32), written: Width::U8, .. } => $rows::<Integers, *mut f32, Plain, *mut u8>,
            Kind { added: Some(Width::Bf16), written: Width::F32, .. } => $rows::<Integers, *mut bf16, Plain, *mut f32>,
            Kind { added: Some(Width::Bf16), written: Width::Bf16, .. } => {
                $rows::<Integers, *mut bf16, Plain, *mut bf16>
            }
            Kind { added: Some(Width::Bf16), written: Width::U8, folded: true, .. } => {
                $rows::<Integers, *mut bf16, Plain, Near>
            }
            Kind { added: Some(Width::Bf16), written: Width::U8, .. } => $rows::<Integers, *mut bf16, Plain, *mut u8>,
            Kind { added: Some(Width::U8), written: Width::F32, .. } => $rows::<Integers, Quantized, Plain, *mut f32>,
            Kind { added: Some(Width::U8), written: Width::Bf16, .. } => $rows::<Integers, Quantized, Plain, *mut bf16>,
            Kind { added: Some(Width::U8), written: Width::U8, folded: true, .. } => {
                $rows::<Integers, Quantized, Plain, Near>
            }
            Kind { added: Some(Width::U8), written: Width::U8, .. } => $rows::<Integers, Quantized, Plain, *mut u8>,
        }
    }};
}
pub(super) use with_types;

/// The same of [`Unbiased`] sums of floats, with these bounds.
macro_rules! with_unbiased_types {
    ($kind:expr, $bounds:expr, $rows:ident) => {{
        use super::block::{Floats, Kind, Unbiased, Width};
        use half::bf16;
        macro_rules! bounded {
            ($added:ty, $written:ty) => {
                match $bounds {
                    (false, false) => $rows::<Floats, $added, Unbiased<false, false>, $written>,
                    (true, false) => $rows::<Floats, $added, Unbiased<true, false>, $written>,
                    _ => $rows::<Floats, $added, Unbiased<true, true>, $written>,
                }
            };
        }
        match $kind {
            Kind { added: None, written: Width::F32, .. } => bounded!((), *mut f32),
            Kind { added: None, .. } => bounded!((), *mut bf16),
            Kind { added: Some(Width::F32), written: Width::F32, .. } => bounded!(*mut f32, *mut f32),
            Kind { added: Some(Width::F32), .. } => bounded!(*mut f32, *mut bf16),
            Kind { written: Width::F32, .. } => bounded!(*mut bf16, *mut f32),
            _ => bounded!(*mut bf16, *mut bf16),
        }
    }};
}
pub(super) use with_unbiased_types;

/// What all rows of an ending share.
#[derive(Clone, Copy)]
pub(super) struct Shared<V> {
    limits: Limits<V>,
    bias: [V; PAIR],
    scales: [V; PAIR],
    /// What is added to sums of integers, where that was not worked into the bias.
    shifts: [*const i32; PAIR],
    /// A residual is multiplied by, where that was worked into one product.
    factor: V,
    /// The factors of a function, and what is added to quantised numbers behind it.
    gate: [V; 3],
    zero: V,
}

impl<V: Vector> Shared<V> {
    /// Of an ending whose second register begins with a column.
    ///
    /// # Safety
    /// As [`Ending::run`]; bias and scales have the columns.
    #[inline(always)]
    pub unsafe fn of<S: Summed, A: Added, F: Applied, W: Written>(
        ending: &Ending<'_>,
        added: A,
        second: usize,
    ) -> Shared<V> {
        // SAFETY: the caller's promise.
        unsafe {
            let limits = Limits::<V>::of(ending);
            let (mut bias, mut scales) = ([V::splat(0.0); PAIR], [V::splat(1.0); PAIR]);
            if !ending.bias.is_empty() {
                bias = [V::load(ending.bias.as_ptr()), V::load(ending.bias.as_ptr().add(second))];
            }
            let mut shifts = [[].as_ptr(); PAIR];
            if S::SCALED
                && let Some(scaling) = ending.integers
            {
                shifts = [scaling.added.as_ptr(), scaling.added.as_ptr().add(second)];
                scales = [V::load(scaling.scales.as_ptr()), V::load(scaling.scales.as_ptr().add(second))];
            }
            let factor = limits.inverse.times(V::splat(added.scale()));
            let zero = V::splat(limits.bytes.zero.into());
            let mut gate = [zero; 3];
            if F::CURVED.is_some() {
                if let Some(function) = ending.function.and_then(Gate::of) {
                    gate = function.lanes();
                }
                if S::SCALED {
                    for half in 0..PAIR {
                        bias[half] = bias[half].plus_product(V::load(shifts[half].cast()).whole(), scales[half]);
                    }
                }
            } else if W::FOLDED {
                let rest = zero.minus_product(V::splat(added.zero()), factor);
                for half in 0..PAIR {
                    scales[half] = scales[half].times(limits.inverse);
                    let sums = V::load(shifts[half].cast()).whole().times(scales[half]);
                    bias[half] = rest.plus_product(bias[half], limits.inverse).plus(sums);
                }
            }
            Shared { limits, bias, scales, shifts, factor, gate, zero }
        }
    }

    /// What is added to sums of integers, where that was not worked into the bias.
    ///
    /// # Safety
    /// The ending had that.
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    pub unsafe fn shifts(&self) -> [std::arch::x86_64::__m512i; PAIR] {
        let [first, second] = self.shifts;
        // SAFETY: the caller's promise; there is a number for each column, aligned or not.
        unsafe {
            [
                first.cast::<std::arch::x86_64::__m512i>().read_unaligned(),
                second.cast::<std::arch::x86_64::__m512i>().read_unaligned(),
            ]
        }
    }

    /// What is written of a register of sums, whose place in residual and target is `at`.
    ///
    /// # Safety
    /// As [`Ending::run`].
    #[inline(always)]
    pub unsafe fn number<S: Summed, A: Added, F: Applied, W: Written>(
        &self,
        half: usize,
        sums: V,
        added: A,
        at: usize,
    ) -> V {
        // SAFETY: the caller's promise.
        unsafe {
            let number = self.biased::<S, F, W>(half, sums);
            match (F::CURVED, W::FOLDED) {
                (Some(_), _) => number,
                (None, true) => added.add_product(at, number, self.factor),
                (None, false) => added.add(at, number),
            }
        }
    }

    /// The same of both registers of a row, one behind the other.
    ///
    /// # Safety
    /// As [`Ending::run`].
    #[inline(always)]
    pub unsafe fn pair<S: Summed, A: Added, F: Applied, W: Written>(
        &self,
        [first, second]: [V; PAIR],
        added: A,
        at: usize,
    ) -> [V; PAIR] {
        // SAFETY: the caller's promise.
        unsafe {
            if F::CURVED.is_some() || W::FOLDED {
                let first = self.number::<S, A, F, W>(0, first, added, at);
                return [first, self.number::<S, A, F, W>(1, second, added, at + V::LANES)];
            }
            added.add_pair(at, [self.biased::<S, F, W>(0, first), self.biased::<S, F, W>(1, second)])
        }
    }

    /// Sums and bias.
    ///
    /// # Safety
    /// As [`Ending::run`].
    #[inline(always)]
    unsafe fn biased<S: Summed, F: Applied, W: Written>(&self, half: usize, sums: V) -> V {
        let (bias, scales) = (self.bias[half], self.scales[half]);
        // SAFETY: the caller's promise.
        unsafe {
            match S::SCALED {
                true if F::CURVED.is_some() || W::FOLDED || S::HAS_BEGUN => bias.plus_product(sums.whole(), scales),
                true => bias.plus_product(sums.sums(self.shifts[half]), scales),
                false if F::BIASED => sums.plus(bias),
                false => sums,
            }
        }
    }

    /// Takes what [`Shared::number`] has made of some registers through the function, where there is one.
    ///
    /// # Safety
    /// As [`Vector`].
    #[inline(always)]
    pub unsafe fn apply<F: Applied, W: Written, const N: usize>(&self, numbers: &mut [V; N]) {
        // SAFETY: the caller's promise.
        unsafe {
            match F::CURVED {
                None => return,
                Some(true) => gate::pass::<V, true, N>(self.gate, numbers),
                Some(false) => gate::pass::<V, false, N>(self.gate, numbers),
            }
            if W::FOLDED {
                for number in numbers {
                    *number = self.zero.plus_product(*number, self.limits.inverse);
                }
            }
        }
    }

    /// Writes both registers of what [`Shared::number`] has made and [`Shared::apply`] has changed.
    ///
    /// # Safety
    /// As [`Written::write`].
    #[inline(always)]
    pub unsafe fn write<F: Applied, W: Written, const WIDE: bool>(
        &self,
        target: W,
        at: [usize; PAIR],
        pair: [V; PAIR],
    ) {
        // SAFETY: the caller's promise.
        unsafe {
            target.write::<V, F, WIDE>(at, pair, &self.limits);
        }
    }
}

#[cfg(target_arch = "x86_64")]
impl<V: Vector> Shared<V> {
    /// Ends the first register of a row, which is all that there is of it.
    ///
    /// # Safety
    /// As [`Ending::run`]; halves can be written.
    #[inline(always)]
    pub unsafe fn end_first<S: Summed, A: Added, F: Applied, W: Written>(
        &self,
        sums: V,
        (added, target): (A, W),
        at: usize,
    ) {
        // SAFETY: the caller's promise.
        unsafe {
            let mut number = [self.number::<S, A, F, W>(0, sums, added, at)];
            self.apply::<F, W, 1>(&mut number);
            target.write_first::<V, F>(at, number[0], &self.limits);
        }
    }
}

/// Asks for the lines of a row that comes later, each once.
#[inline(always)]
pub(super) fn ask<A: Added, W: Written>(added: A, target: W, at: usize) {
    let target = target.place(at);
    prefetch::to_second_level(target);
    if let Some(added) = added.place(at).filter(|added| *added != target) {
        prefetch::to_second_level(added);
    }
}

/// Writes the target of an ending that has this kind.
///
/// Where rows are narrower than two registers, these share columns, or hold two rows of one register. All that is added to
/// them is read before they are written.
///
/// # Safety
/// As [`Ending::run`]; there are sums for the rows.
#[inline(always)]
pub(super) unsafe fn rows<V: Vector, S: Summed, A: Added, F: Applied, W: Written, const WIDE: bool>(
    ending: &Ending<'_>,
    sums: *const f32,
) {
    let (Some(added), Some(target)) = (A::of(ending.residual), W::of(ending.target)) else {
        return debug_assert!(false, "an ending of another kind");
    };
    let Ending { rows, columns, pitch, apart, .. } = *ending;
    debug_assert!(WIDE == (columns == PAIR * V::LANES) && columns >= V::LANES);
    // Where the second register begins, from the place of the first.
    let last = if WIDE { V::LANES } else { columns - V::LANES };
    let (together, second) = match last {
        0 => (PAIR, Place { sum: pitch, column: 0, target: apart }),
        last => (1, Place { sum: last, column: last, target: last }),
    };
    // SAFETY: the caller's promise; a row of sums, bias and scales has the columns.
    unsafe {
        let shared = Shared::<V>::of::<S, A, F, W>(ending, added, second.column);
        let mut row = 0;
        if F::CURVED.is_some() && WIDE {
            const ROWS: usize = TOGETHER / PAIR;
            while row + ROWS <= rows {
                let mut numbers = [V::splat(0.0); TOGETHER];
                for (index, number) in numbers.iter_mut().enumerate() {
                    let (row, half) = (row + index / PAIR, index % PAIR);
                    let sums = V::load(sums.add(row * pitch + half * V::LANES));
                    *number = shared.number::<S, A, F, W>(half, sums, added, row * apart + half * V::LANES);
                }
                shared.apply::<F, W, TOGETHER>(&mut numbers);
                for (index, pair) in numbers.as_chunks::<PAIR>().0.iter().enumerate() {
                    if ending.ahead > 0 {
                        ask(added, target, (row + index + ending.ahead) * apart);
                    }
                    let at = (row + index) * apart;
                    shared.write::<F, W, WIDE>(target, [at, at + V::LANES], *pair);
                }
                row += ROWS;
            }
        }
        while row < rows {
            if ending.ahead > 0 {
                ask(added, target, (row + ending.ahead) * apart);
            }
            // A last row without another is both.
            let second = if !WIDE && row + together > rows { Place::default() } else { second };
            let at = row * apart;
            let first = V::load(sums.add(row * pitch));
            let last = V::load(sums.add(row * pitch + second.sum));
            let mut pair = if WIDE {
                shared.pair::<S, A, F, W>([first, last], added, at)
            } else {
                let first = shared.number::<S, A, F, W>(0, first, added, at);
                [first, shared.number::<S, A, F, W>(1, last, added, at + second.target)]
            };
            shared.apply::<F, W, PAIR>(&mut pair);
            shared.write::<F, W, WIDE>(target, [at, at + second.target], pair);
            row += together;
        }
    }
}
