//! What happens to sums of neighbouring pixels before they are written, channels last.

use crate::Isa;
use crate::isa::multiversion;
use crate::kernels::epilogue::{Bounded, Epilogue, activate, within};
use crate::map::Register;
use crate::vector::{Four, Vector};
use halimede_graph::ops::Unary;
use halimede_tensor::View;

/// Bias and epilogue of a convolution for one panel of channels.
pub(super) struct Finish<'a> {
    /// Of the panel's channels; empty where there is none.
    pub bias: &'a [f32],
    pub epilogue: Option<&'a Epilogue>,
    /// The inputs that follow the operator's own.
    pub extra: &'a [Option<View<'a>>],
    pub isa: Isa,
    /// Distance of pixels in the sums.
    pub nr: usize,
}

/// Pixels of a row on their way to the output.
struct Pixels<'a> {
    /// `nr` elements for each pixel, of which the first `wide` count.
    sums: &'a [f32],
    nr: usize,
    wide: usize,
    bias: &'a [f32],
    /// Like the target: the elements from the first pixel on.
    residual: Option<&'a [f32]>,
    bounds: (f32, f32),
    target: *mut f32,
    /// Distance of pixels in the target.
    apart: usize,
}

impl Finish<'_> {
    /// Adds the bias to the sums of pixels of a row, applies the epilogue and writes them. `start` is the
    /// place of the first in the output.
    ///
    /// # Safety
    /// `target` is valid for `columns` pixels `apart` elements apart with `wide` elements each.
    pub unsafe fn store(
        &self,
        sums: &mut [f32],
        (columns, wide): (usize, usize),
        start: usize,
        target: *mut f32,
        apart: usize,
        registers: &mut [Register],
    ) {
        let (nr, mut bias, mut bounded) = (self.nr, self.bias, Bounded::NONE);
        let sums = &mut sums[..columns * nr];
        if let Some(epilogue) = self.epilogue {
            match epilogue.bounded() {
                Some(found) => bounded = *found,
                None => {
                    add_bias(self.isa, sums, nr, bias);
                    bias = &[];
                    epilogue.apply(self.extra, sums, nr, (columns, wide), (start, apart), registers);
                }
            }
        }
        // SAFETY: inputs are not written during the step; the residual has the output's elements.
        let residual = bounded.residual.and_then(|input| self.extra[input]).map(|view| unsafe { view.slice::<f32>() });
        let mut residual = residual.map(|elements| &elements[start..]);
        let bounds = (bounded.low, bounded.high);
        if let Some(function) = bounded.function {
            activate_sums(self.isa, sums, (nr, wide), bias, residual.map(|residual| (residual, apart)), function);
            (bias, residual) = (&[], None);
        }
        // SAFETY: the caller's promise.
        unsafe { write(self.isa, &Pixels { sums, nr, wide, bias, residual, bounds, target, apart }) };
    }
}

multiversion! {
    fn add_bias(sums: &mut [f32], nr: usize, bias: &[f32]) = add_to_each
}

#[inline(always)]
fn add_to_each(sums: &mut [f32], nr: usize, bias: &[f32]) {
    for sums in sums.chunks_exact_mut(nr) {
        sums.iter_mut().zip(bias).for_each(|(sum, &bias)| *sum += bias);
    }
}

multiversion! {
    /// Adds bias and residual (elements, distance of pixels) to the sums and applies a function.
    fn activate_sums(
        sums: &mut [f32],
        sizes: (usize, usize),
        bias: &[f32],
        residual: Option<(&[f32], usize)>,
        function: Unary,
    ) = activate_each
}

#[inline(always)]
fn activate_each(
    sums: &mut [f32],
    (nr, wide): (usize, usize),
    bias: &[f32],
    residual: Option<(&[f32], usize)>,
    function: Unary,
) {
    add_to_each(sums, nr, bias);
    if let Some((residual, apart)) = residual {
        for (pixel, sums) in sums.chunks_exact_mut(nr).enumerate() {
            let residual = &residual[pixel * apart..][..wide];
            sums.iter_mut().zip(residual).for_each(|(sum, &residual)| *sum += residual);
        }
    }
    // All pixels are one line; what lies beyond the channels is never written.
    activate(function, sums);
}

/// # Safety
/// The target of `pixels` is valid for all of them.
unsafe fn write(isa: Isa, pixels: &Pixels<'_>) {
    // SAFETY: an `Isa` exists only where the machine has its instructions; else the caller's promise.
    unsafe {
        #[cfg(target_arch = "x86_64")]
        {
            if isa.has_avx512() {
                return x86::avx512(pixels);
            }
            if isa.has_avx2() {
                return x86::avx2(pixels);
            }
        }
        let _ = isa;
        write_each::<Four>(pixels);
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{Pixels, write_each};
    use std::arch::x86_64::{__m256, __m512};

    /// # Safety
    /// As [`write_each`], on a machine with AVX-512 F.
    #[target_feature(enable = "avx512f")]
    pub(super) unsafe fn avx512(pixels: &Pixels<'_>) {
        // SAFETY: the caller's promise, here and below.
        unsafe { write_each::<__m512>(pixels) }
    }

    /// # Safety
    /// As [`write_each`], on a machine with AVX2.
    #[target_feature(enable = "avx2,fma")]
    pub(super) unsafe fn avx2(pixels: &Pixels<'_>) {
        // SAFETY: as above.
        unsafe { write_each::<__m256>(pixels) }
    }
}

/// # Safety
/// As [`Vector`]; the target is valid.
#[inline(always)]
unsafe fn write_each<V: Vector>(pixels: &Pixels<'_>) {
    let Pixels { nr, wide, apart, .. } = *pixels;
    let whole = wide - wide % V::LANES;
    // SAFETY: the caller's promise.
    unsafe {
        let (low, high) = (V::splat(pixels.bounds.0), V::splat(pixels.bounds.1));
        for (pixel, sums) in pixels.sums.chunks_exact(nr).enumerate() {
            let residual = pixels.residual.map(|residual| &residual[pixel * apart..][..wide]);
            let target = pixels.target.add(pixel * apart);
            for at in (0..whole).step_by(V::LANES) {
                let mut sum = V::load(sums[at..].as_ptr());
                if !pixels.bias.is_empty() {
                    sum = sum.plus(V::load(pixels.bias[at..].as_ptr()));
                }
                if let Some(residual) = residual {
                    sum = sum.plus(V::load(residual[at..].as_ptr()));
                }
                sum.at_least(low).at_most(high).store(target.add(at));
            }
            for at in whole..wide {
                let sum =
                    sums[at] + pixels.bias.get(at).unwrap_or(&0.0) + residual.map_or(0.0, |residual| residual[at]);
                *target.add(at) = within(sum, pixels.bounds);
            }
        }
    }
}
