//! Elements between memory and registers.

use super::{BLOCK, Register};
use crate::Isa;
use crate::isa::multiversion;
use crate::real::Real;
use crate::vector::{Vector, on_vectors};
use half::{bf16, f16, slice::HalfFloatSliceExt};
use halimede_tensor::{DType, Element, View};

/// Reads `count` elements from `start` on into a register from `at` on.
///
/// # Safety
/// As [`View::slice`]; `at + count` is at most [`BLOCK`].
#[inline(always)]
pub(crate) unsafe fn load(
    isa: Isa,
    view: View<'_>,
    dtype: DType,
    start: usize,
    count: usize,
    at: usize,
    register: &mut Register,
) {
    debug_assert!(at + count <= BLOCK);
    /// # Safety
    /// As `load`.
    #[inline(always)]
    unsafe fn ints<T: Element + Into<i64>>(v: View<'_>, start: usize, count: usize, at: usize, r: &mut Register) {
        // SAFETY: the caller's duty.
        let source = unsafe { &v.slice::<T>()[start..start + count] };
        for (target, &element) in r.i64_mut()[at..at + count].iter_mut().zip(source) {
            *target = element.into();
        }
    }
    // SAFETY: the caller's duty.
    unsafe {
        match dtype {
            DType::F32 => register.f32_mut()[at..at + count].copy_from_slice(&view.slice()[start..start + count]),
            DType::F64 => register.f64_mut()[at..at + count].copy_from_slice(&view.slice()[start..start + count]),
            DType::I64 => register.i64_mut()[at..at + count].copy_from_slice(&view.slice()[start..start + count]),
            DType::U64 => {
                let source = &view.slice::<u64>()[start..start + count];
                register.i64_mut()[at..at + count].copy_from_slice(bytemuck::cast_slice(source));
            }
            DType::F16 => {
                view.slice::<f16>()[start..start + count].convert_to_f32_slice(&mut register.f32_mut()[at..at + count])
            }
            DType::Bf16 => {
                let source = &view.slice::<bf16>()[start..start + count];
                bf16::widen_all(isa, source, &mut register.f32_mut()[at..at + count]);
            }
            DType::Bool | DType::U8 => {
                widen_unsigned(isa, &view.slice()[start..start + count], &mut register.i64_mut()[at..at + count])
            }
            DType::I8 => {
                widen_signed(isa, &view.slice()[start..start + count], &mut register.i64_mut()[at..at + count])
            }
            DType::U16 => ints::<u16>(view, start, count, at, register),
            DType::I16 => ints::<i16>(view, start, count, at, register),
            DType::U32 => ints::<u32>(view, start, count, at, register),
            DType::I32 => ints::<i32>(view, start, count, at, register),
            other => unreachable!("the program was compiled for classes that exclude {other}"),
        }
    }
}

/// Fills a register with one element.
///
/// # Safety
/// As [`View::slice`].
#[inline(always)]
pub(crate) unsafe fn splat(
    isa: Isa,
    view: View<'_>,
    dtype: DType,
    index: usize,
    count: usize,
    at: usize,
    register: &mut Register,
) {
    // SAFETY: the caller's duty.
    unsafe { load(isa, view, dtype, index, 1, at, register) };
    match dtype {
        DType::F32 | DType::F16 | DType::Bf16 => {
            let element = register.f32()[at];
            register.f32_mut()[at..at + count].fill(element);
        }
        _ => {
            let element = register.i64()[at];
            register.i64_mut()[at..at + count].fill(element);
        }
    }
}

/// Writes the first `count` elements of a register to `start` on.
///
/// # Safety
/// As [`View::slice_mut`] for those elements.
#[inline(always)]
pub(crate) unsafe fn store(isa: Isa, register: &Register, view: View<'_>, dtype: DType, start: usize, count: usize) {
    /// # Safety
    /// As `store`.
    #[inline(always)]
    unsafe fn part<'a, T: Element>(view: View<'a>, start: usize, count: usize) -> &'a mut [T] {
        assert!((start + count) * size_of::<T>() <= view.len());
        // SAFETY: inside the view (just checked), whose elements from `start` on are the caller's alone;
        // a slice of the whole view would overlap other threads' parts.
        unsafe { std::slice::from_raw_parts_mut(view.as_ptr().cast::<T>().add(start), count) }
    }
    macro_rules! ints {
        ($t:ty) => {
            for (target, &element) in part::<$t>(view, start, count).iter_mut().zip(register.i64()) {
                *target = element as $t;
            }
        };
    }
    // SAFETY: the caller's duty, here and in the integers' macro.
    unsafe {
        match dtype {
            DType::F32 => part::<f32>(view, start, count).copy_from_slice(&register.f32()[..count]),
            DType::F64 => part::<f64>(view, start, count).copy_from_slice(&register.f64()[..count]),
            DType::F16 => part::<f16>(view, start, count).convert_from_f32_slice(&register.f32()[..count]),
            DType::Bf16 => bf16::narrow_all(isa, &register.f32()[..count], part(view, start, count)),
            DType::I64 | DType::U64 => part::<i64>(view, start, count).copy_from_slice(&register.i64()[..count]),
            DType::Bool | DType::U8 => ints!(u8),
            DType::I8 => ints!(i8),
            DType::U16 => ints!(u16),
            DType::I16 => ints!(i16),
            DType::U32 => ints!(u32),
            DType::I32 => ints!(i32),
            other => unreachable!("the program was compiled for classes that exclude {other}"),
        }
    }
}

/// Writes the first `count` elements of a register of f32, which are whole and within the range of U8 or I8, to `start` on.
///
/// # Safety
/// As [`store`].
pub(crate) unsafe fn store_whole(
    isa: Isa,
    register: &Register,
    view: View<'_>,
    dtype: DType,
    start: usize,
    count: usize,
) {
    assert!(start + count <= view.len());
    let whole = Whole { numbers: &register.f32()[..count], to: view.as_ptr().wrapping_add(start), dtype };
    store_each(isa, whole);
}

/// Whole numbers, and where the first of as many bytes lies. Who makes one promises that these are the caller's alone.
struct Whole<'a> {
    numbers: &'a [f32],
    to: *mut u8,
    dtype: DType,
}

on_vectors! {
    fn store_each(whole: Whole<'_>) = store_each_on
}

/// # Safety
/// As [`Vector`].
#[inline(always)]
unsafe fn store_each_on<V: Vector>(Whole { numbers, to, dtype }: Whole<'_>) {
    let in_registers = numbers.len() - numbers.len() % V::LANES;
    // SAFETY: the caller's promise; there are as many bytes as numbers.
    unsafe {
        for at in (0..in_registers).step_by(V::LANES) {
            V::load(numbers.as_ptr().add(at)).store_bytes(to.add(at));
        }
        for (at, &number) in numbers.iter().enumerate().skip(in_registers) {
            let byte = if dtype == DType::I8 { (number as i8).cast_unsigned() } else { number as u8 };
            to.add(at).write(byte);
        }
    }
}

multiversion! {
    fn widen_unsigned(from: &[u8], to: &mut [i64]) = widen_each_unsigned
}

#[inline(always)]
fn widen_each_unsigned(from: &[u8], to: &mut [i64]) {
    for (to, &byte) in to.iter_mut().zip(from) {
        *to = byte.into();
    }
}

multiversion! {
    fn widen_signed(from: &[i8], to: &mut [i64]) = widen_each_signed
}

#[inline(always)]
fn widen_each_signed(from: &[i8], to: &mut [i64]) {
    for (to, &byte) in to.iter_mut().zip(from) {
        *to = byte.into();
    }
}
