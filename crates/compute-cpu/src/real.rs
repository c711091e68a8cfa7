//! Numbers that kernels compute in f32 and keep in memory in f32 or in 16 bits.

use crate::Isa;
use crate::isa::multiversion;
use crate::prefetch;
use crate::vector::{Vector, on_vectors};
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};
use halimede_tensor::{DType, Element, View};

/// A datatype of numbers that are computed in f32.
pub(crate) trait Real: Converts<bf16> {
    /// The number in f32, without loss.
    fn widen(self) -> f32;
    /// Widens every number of `from`; `to` is as long.
    fn widen_all(isa: Isa, from: &[Self], to: &mut [f32]);
    /// Rounds every number of `from` to this type; `to` is as long.
    fn narrow_all(isa: Isa, from: &[f32], to: &mut [Self]);
    /// Reads a register of numbers.
    ///
    /// # Safety
    /// As [`Vector::load`].
    unsafe fn load<V: Vector>(from: *const Self) -> V;
    /// Reads two registers of numbers in the order in which this type is read fastest.
    ///
    /// # Safety
    /// As [`Vector::load`].
    unsafe fn load_pair<V: Vector>(from: *const Self) -> [V; 2];
    /// Puts two registers of neighbours into the order of [`Real::load_pair`].
    ///
    /// # Safety
    /// As [`Vector`].
    unsafe fn split<V: Vector>(pair: [V; 2]) -> [V; 2];
    /// Writes two registers in that order as neighbours.
    ///
    /// # Safety
    /// As [`Vector::store`].
    unsafe fn store_pair<V: Vector>(pair: [V; 2], to: *mut Self);
    /// The same in whatever type, `at` numbers behind the first.
    ///
    /// # Safety
    /// As [`Vector::store`].
    unsafe fn store_joined<V: Vector>(pair: [V; 2], to: Numbers, at: usize);
    /// Writes a register of numbers.
    ///
    /// # Safety
    /// As [`Vector::store`].
    unsafe fn store<V: Vector>(numbers: V, to: *mut Self);
    /// The number of this type that is nearest.
    fn nearest(number: f32) -> Self;
}

/// Numbers of a datatype that is known when a step runs, from an address on.
#[derive(Clone, Copy)]
pub(crate) enum Numbers {
    F32(*mut f32),
    Bf16(*mut bf16),
    U8(*mut u8),
    I8(*mut i8),
}

impl Numbers {
    /// Those of a view, from an element on.
    ///
    /// # Panics
    /// Where fewer than `count` follow, or the datatype is another.
    pub fn of(view: View<'_>, dtype: DType, start: usize, count: usize) -> Numbers {
        assert!((start + count) * dtype.size() <= view.len(), "numbers outside of their tensor");
        match dtype {
            DType::F32 => Numbers::F32(view.as_ptr().cast::<f32>().wrapping_add(start)),
            DType::Bf16 => Numbers::Bf16(view.as_ptr().cast::<bf16>().wrapping_add(start)),
            DType::U8 => Numbers::U8(view.as_ptr().cast::<u8>().wrapping_add(start)),
            DType::I8 => Numbers::I8(view.as_ptr().cast::<i8>().wrapping_add(start)),
            other => panic!("numbers in {other}"),
        }
    }

    /// Those from the number on that lies `at` behind the first.
    #[inline(always)]
    pub fn from(self, at: usize) -> Numbers {
        // In bytes, so that all kinds are one addition rather than a branch.
        let bytes = at.wrapping_mul(self.size());
        match self {
            Numbers::F32(start) => Numbers::F32(start.wrapping_byte_add(bytes)),
            Numbers::Bf16(start) => Numbers::Bf16(start.wrapping_byte_add(bytes)),
            Numbers::U8(start) => Numbers::U8(start.wrapping_byte_add(bytes)),
            Numbers::I8(start) => Numbers::I8(start.wrapping_byte_add(bytes)),
        }
    }

    /// Bytes of a number.
    #[inline(always)]
    fn size(self) -> usize {
        match self {
            Numbers::F32(_) => size_of::<f32>(),
            Numbers::Bf16(_) => size_of::<bf16>(),
            Numbers::U8(_) | Numbers::I8(_) => size_of::<u8>(),
        }
    }

    /// Reads one number `at` numbers behind the first.
    ///
    /// # Safety
    /// Nobody writes that number.
    #[inline(always)]
    pub unsafe fn get(self, at: usize) -> f32 {
        // SAFETY: the caller's promise.
        unsafe {
            match self {
                Numbers::F32(start) => start.add(at).read(),
                Numbers::Bf16(start) => start.add(at).read().widen(),
                Numbers::U8(start) => f32::from(start.add(at).read()),
                Numbers::I8(start) => f32::from(start.add(at).read()),
            }
        }
    }

    /// Writes a register `at` numbers behind the first.
    ///
    /// # Safety
    /// As [`Vector::store`].
    #[inline(always)]
    pub unsafe fn store<V: Vector>(self, at: usize, numbers: V) {
        // SAFETY: the caller's promise.
        unsafe {
            match self {
                Numbers::F32(start) => numbers.store(start.add(at)),
                Numbers::Bf16(start) => numbers.narrow(start.add(at)),
                Numbers::U8(start) => numbers.store_bytes(start.add(at)),
                Numbers::I8(start) => numbers.store_bytes(start.add(at).cast()),
            }
        }
    }

    /// Asks for the cache line that begins, or goes on, `at` numbers behind the first: it need not be theirs.
    #[inline(always)]
    pub fn ask_for(self, at: usize) {
        match self {
            Numbers::F32(start) => prefetch::to_second_level(start.wrapping_add(at)),
            Numbers::Bf16(start) => prefetch::to_second_level(start.wrapping_add(at)),
            Numbers::U8(start) => prefetch::to_second_level(start.wrapping_add(at)),
            Numbers::I8(start) => prefetch::to_second_level(start.wrapping_add(at)),
        }
    }

    /// Writes one number `at` numbers behind the first.
    ///
    /// # Safety
    /// Nobody else touches that number.
    #[inline(always)]
    pub unsafe fn set(self, at: usize, number: f32) {
        // SAFETY: the caller's promise.
        unsafe {
            match self {
                Numbers::F32(start) => start.add(at).write(number),
                Numbers::Bf16(start) => start.add(at).write(nearest(number)),
                Numbers::U8(start) => start.add(at).write(number as u8),
                Numbers::I8(start) => start.add(at).write(number as i8),
            }
        }
    }
}

impl Real for f32 {
    #[inline(always)]
    fn widen(self) -> f32 {
        self
    }

    fn widen_all(_: Isa, from: &[f32], to: &mut [f32]) {
        to.copy_from_slice(from);
    }

    fn narrow_all(_: Isa, from: &[f32], to: &mut [f32]) {
        to.copy_from_slice(from);
    }

    #[inline(always)]
    unsafe fn load<V: Vector>(from: *const f32) -> V {
        // SAFETY: the caller's promise.
        unsafe { V::load(from) }
    }

    #[inline(always)]
    unsafe fn load_pair<V: Vector>(from: *const f32) -> [V; 2] {
        // SAFETY: the caller's promise.
        unsafe { [V::load(from), V::load(from.add(V::LANES))] }
    }

    #[inline(always)]
    unsafe fn split<V: Vector>(pair: [V; 2]) -> [V; 2] {
        pair
    }

    #[inline(always)]
    unsafe fn store_pair<V: Vector>([a, b]: [V; 2], to: *mut f32) {
        // SAFETY: the caller's promise.
        unsafe {
            a.store(to);
            b.store(to.add(V::LANES));
        }
    }

    #[inline(always)]
    unsafe fn store_joined<V: Vector>([a, b]: [V; 2], to: Numbers, at: usize) {
        // SAFETY: the caller's promise.
        unsafe {
            to.store(at, a);
            to.store(at + V::LANES, b);
        }
    }

    #[inline(always)]
    unsafe fn store<V: Vector>(numbers: V, to: *mut f32) {
        // SAFETY: the caller's promise.
        unsafe { numbers.store(to) }
    }

    #[inline(always)]
    fn nearest(number: f32) -> f32 {
        number
    }
}

impl Real for bf16 {
    #[inline(always)]
    fn widen(self) -> f32 {
        // Without the branch that the type's own conversion has for NaN.
        f32::from_bits(u32::from(self.to_bits()) << 16)
    }

    fn widen_all(isa: Isa, from: &[bf16], to: &mut [f32]) {
        widen(isa, from, to);
    }

    fn narrow_all(isa: Isa, from: &[f32], to: &mut [bf16]) {
        narrow(isa, from, to);
    }

    #[inline(always)]
    unsafe fn load<V: Vector>(from: *const bf16) -> V {
        // SAFETY: the caller's promise.
        unsafe { V::widen(from) }
    }

    #[inline(always)]
    unsafe fn load_pair<V: Vector>(from: *const bf16) -> [V; 2] {
        // SAFETY: the caller's promise.
        unsafe { V::widen_split(from) }
    }

    #[inline(always)]
    unsafe fn split<V: Vector>(pair: [V; 2]) -> [V; 2] {
        // SAFETY: the caller's promise.
        unsafe { V::split(pair) }
    }

    #[inline(always)]
    unsafe fn store_pair<V: Vector>(pair: [V; 2], to: *mut bf16) {
        // SAFETY: the caller's promise.
        unsafe { V::narrow_joined(pair, to) }
    }

    #[inline(always)]
    unsafe fn store_joined<V: Vector>(pair: [V; 2], to: Numbers, at: usize) {
        // SAFETY: the caller's promise, here and below.
        unsafe {
            match to {
                Numbers::Bf16(to) => bf16::store_pair(pair, to.add(at)),
                to => f32::store_joined(V::join(pair), to, at),
            }
        }
    }

    #[inline(always)]
    unsafe fn store<V: Vector>(numbers: V, to: *mut bf16) {
        // SAFETY: the caller's promise.
        unsafe { numbers.narrow(to) }
    }

    #[inline(always)]
    fn nearest(number: f32) -> bf16 {
        nearest(number)
    }
}

/// A datatype whose numbers can be factors `F` of a product.
pub(crate) trait Converts<F>: Element {
    /// The number as a factor.
    fn convert(self) -> F;
    /// Every number of `from` as a factor; `to` is as long.
    fn convert_all(isa: Isa, from: &[Self], to: &mut [F]);
}

/// Rounds to the nearest, ties to even.
impl Converts<bf16> for f32 {
    #[inline(always)]
    fn convert(self) -> bf16 {
        nearest(self)
    }

    fn convert_all(isa: Isa, from: &[f32], to: &mut [bf16]) {
        factors(isa, from, to);
    }
}

/// Rounds to the nearest, ties to even; what is beyond the largest becomes infinite.
impl Converts<f16> for f32 {
    #[inline(always)]
    fn convert(self) -> f16 {
        f16::from_f32(self)
    }

    fn convert_all(_: Isa, from: &[f32], to: &mut [f16]) {
        to.convert_from_f32_slice(from);
    }
}

on_vectors! {
    /// Rounds numbers that are multiplied next: those below the normal ones may become 0, as which the matrix
    /// units take them.
    fn factors(from: &[f32], to: &mut [bf16]) = factors_on
}

/// # Safety
/// As [`Vector`].
#[inline(always)]
unsafe fn factors_on<V: Vector>(from: &[f32], to: &mut [bf16]) {
    assert!(to.len() <= from.len());
    let whole = to.len() - to.len() % V::LANES;
    for at in (0..whole).step_by(V::LANES) {
        // SAFETY: the caller's promise; a register's numbers lie inside both.
        unsafe { V::load(from.as_ptr().add(at)).narrow(to.as_mut_ptr().add(at)) };
    }
    for at in whole..to.len() {
        to[at] = nearest(from[at]);
    }
}

/// Numbers that are factors as they are.
macro_rules! as_they_are {
    ($($number:ty),*) => {
        $(impl Converts<$number> for $number {
            #[inline(always)]
            fn convert(self) -> $number {
                self
            }

            fn convert_all(_: Isa, from: &[$number], to: &mut [$number]) {
                to.copy_from_slice(from);
            }
        })*
    };
}
as_they_are!(bf16, f16, u8, i8);

/// 128 more, for units whose left operand has no sign.
impl Converts<u8> for i8 {
    #[inline(always)]
    fn convert(self) -> u8 {
        self as u8 ^ 0x80
    }

    fn convert_all(isa: Isa, from: &[i8], to: &mut [u8]) {
        lift(isa, from, to);
    }
}

multiversion! {
    fn lift(from: &[i8], to: &mut [u8]) = lift_each
}

#[inline(always)]
fn lift_each(from: &[i8], to: &mut [u8]) {
    to.iter_mut().zip(from).for_each(|(to, &from)| *to = from.convert());
}

multiversion! {
    fn narrow(from: &[f32], to: &mut [bf16]) = narrow_each
}

multiversion! {
    fn widen(from: &[bf16], to: &mut [f32]) = widen_each
}

#[inline(always)]
fn narrow_each(from: &[f32], to: &mut [bf16]) {
    to.iter_mut().zip(from).for_each(|(to, &from)| *to = nearest(from));
}

#[inline(always)]
fn widen_each(from: &[bf16], to: &mut [f32]) {
    to.iter_mut().zip(from).for_each(|(to, &from)| *to = from.widen());
}

/// [`bf16::from_f32`] without a branch, so that the loop around it vectorises.
#[inline(always)]
pub(crate) fn nearest(number: f32) -> bf16 {
    let bits = number.to_bits();
    let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1)) >> 16;
    // Rounding would turn some NaNs into infinities; a quiet NaN keeps its sign and upper payload.
    let quiet = bits >> 16 | 0x40;
    bf16::from_bits(if number.is_nan() { quiet } else { rounded } as u16)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_as_the_type_does() {
        let special = [0.0, -0.0, 1.0, f32::MAX, f32::MIN, f32::INFINITY, f32::NEG_INFINITY, f32::MIN_POSITIVE, 1e-42];
        let ties = (0..64u32).map(|i| f32::from_bits(0x3f80_0000 + i * 0x4000));
        let spread = (0..100_000u32).map(|i| f32::from_bits(i.wrapping_mul(42_949)));
        let numbers: Vec<f32> = special.into_iter().chain(ties).chain(spread).collect();
        for isa in Isa::available() {
            let (mut rounded, mut wide) = (vec![bf16::ZERO; numbers.len()], vec![0.0; numbers.len()]);
            bf16::narrow_all(isa, &numbers, &mut rounded);
            bf16::widen_all(isa, &rounded, &mut wide);
            for ((&number, &got), &wide) in numbers.iter().zip(&rounded).zip(&wide) {
                let want = bf16::from_f32(number);
                assert!(got == want || got.is_nan() && want.is_nan(), "{number}: {got} instead of {want}");
                assert!(wide == want.to_f32() || wide.is_nan() && want.is_nan(), "{number}: {wide}");
                assert_eq!(got.is_sign_negative(), want.is_sign_negative(), "{number}");
            }
        }
    }
}
