//! Elementary functions on f32, branch-free so that loops over them vectorise.
//!
//! Errors are against f64 over the whole range, measured by the tests below.

use std::f32::consts::{FRAC_1_SQRT_2, LN_2, LOG2_E, SQRT_2};

/// 2^n for n in -126..=127.
#[inline(always)]
fn power_of_two(n: i32) -> f32 {
    f32::from_bits((n.wrapping_add(127) << 23) as u32)
}

/// `eˣ`, within 2 units in the last place; 0 below -104, infinity above 88.73.
///
/// x = n·ln 2 + r with |r| at most ln 2 / 2, then the exponential series of r to the seventh power.
#[inline(always)]
pub(crate) fn exp(x: f32) -> f32 {
    let (p, n) = exp_parts(x.clamp(-104.0, 89.0));
    // In two steps, because 2^128 and 2^-150 are no numbers of their own.
    let half = n >> 1;
    p * power_of_two(half) * power_of_two(n - half)
}

/// `eˣ` of x up to 0, as exactly, with fewer operations: 0 where it is less than some 2^-125. What is no number stays none.
#[inline(always)]
pub(crate) fn exp_down(x: f32) -> f32 {
    // Down to here 2ⁿ is a number of full precision.
    const LEAST: f32 = -86.9;
    // In this order a NaN is not below it.
    let (p, n) = exp_parts(if x < LEAST { LEAST } else { x });
    // A product, which stays NaN where p is: the exponent of one added to its bits would make a number of it.
    if x < LEAST { 0.0 } else { p * power_of_two(n) }
}

/// `eˣ = p · 2ⁿ` for x between -104 and 89: p and n.
#[inline(always)]
fn exp_parts(x: f32) -> (f32, i32) {
    // ln 2 in two parts: the first has trailing zeros, so that its product with n is exact.
    const LN_2_HIGH: f32 = 0.693_359_4;
    const LN_2_LOW: f32 = (std::f64::consts::LN_2 - LN_2_HIGH as f64) as f32;
    // Numbers from 2^23 on have no fraction: adding one rounds, and leaves n in the lowest bits.
    const ROUND: f32 = 12_582_912.0;
    let shifted = x.mul_add(LOG2_E, ROUND);
    let n = shifted - ROUND;
    let r = n.mul_add(-LN_2_LOW, n.mul_add(-LN_2_HIGH, x));
    let mut p = 1.0 / 5040.0;
    for c in [1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0] {
        p = r.mul_add(p, c);
    }
    (p, (shifted.to_bits() as i32).wrapping_sub(ROUND.to_bits() as i32))
}

/// Natural logarithm, within 2 units in the last place.
///
/// x = m·2^k with m around 1, then `ln m = 2 artanh((m - 1)/(m + 1))` by its series.
#[inline(always)]
pub(crate) fn ln(x: f32) -> f32 {
    let tiny = x < f32::MIN_POSITIVE;
    let scaled = if tiny { x * 16_777_216.0 } else { x };
    let bits = scaled.to_bits() as i32;
    let k = (bits >> 23) - 127;
    let m = f32::from_bits(((bits & 0x007f_ffff) | 0x3f80_0000) as u32);
    let high = m > SQRT_2;
    let m = if high { m * 0.5 } else { m };
    let k = (k + i32::from(high) - if tiny { 24 } else { 0 }) as f32;
    let f = m - 1.0;
    let s = f / (2.0 + f);
    let q = s * s;
    let mut p = 2.0 / 11.0;
    for c in [2.0 / 9.0, 2.0 / 7.0, 2.0 / 5.0, 2.0 / 3.0] {
        p = q.mul_add(p, c);
    }
    let series = (q * s).mul_add(p, 2.0 * s);
    let result = k.mul_add(LN_2, series);
    if x > 0.0 && x < f32::INFINITY {
        result
    } else if x == 0.0 {
        f32::NEG_INFINITY
    } else if x == f32::INFINITY {
        x
    } else {
        f32::NAN
    }
}

/// Hyperbolic tangent, within 4e-7 of its value.
#[inline(always)]
pub(crate) fn tanh(x: f32) -> f32 {
    let a = x.abs();
    let q = x * x;
    let mut p = -1382.0 / 155_925.0;
    for c in [62.0 / 2835.0, -17.0 / 315.0, 2.0 / 15.0, -1.0 / 3.0] {
        p = q.mul_add(p, c);
    }
    let small = (q * x).mul_add(p, x);
    let large = (1.0 - 2.0 / (exp(2.0 * a) + 1.0)).copysign(x);
    // The series turns -0 into 0.
    if a < 0.35 { small.copysign(x) } else { large }
}

/// Logistic function; 0 below -87, where it is under 2^-125.
#[inline(always)]
pub(crate) fn sigmoid(x: f32) -> f32 {
    // The power of two is then a number of its own.
    let (p, n) = exp_parts((-x).clamp(-87.0, 87.0));
    let y = 1.0 / p.mul_add(power_of_two(n), 1.0);
    if x < -87.0 { 0.0 } else { y }
}

/// Logistic function for numbers that keep 8 bits of it: within 1e-4 of its value, and 1e-34.
#[inline(always)]
pub(crate) fn sigmoid_near(x: f32) -> f32 {
    share_near(x * -LOG2_E)
}

/// `1 / (1 + 2ᵗ)`, the logistic function of `-t · ln 2`, as near as [`sigmoid_near`].
#[inline(always)]
pub(crate) fn share_near(t: f32) -> f32 {
    const ROUND: f32 = 12_582_912.0;
    // As in `exp_parts`, with the series of 2^r to the fourth power.
    let t = t.clamp(-118.0, 118.0);
    let shifted = t + ROUND;
    let r = t - (shifted - ROUND);
    let mut p = 0.009_618_129;
    for c in [0.055_504_11, 0.240_226_5, LN_2, 1.0] {
        p = r.mul_add(p, c);
    }
    let n = (shifted.to_bits() as i32).wrapping_sub(ROUND.to_bits() as i32);
    reciprocal_near(p.mul_add(power_of_two(n), 1.0))
}

/// `1/x` within 4e-6 of its value, for x from 1 to 2^120: a division takes as long as everything else here.
///
/// The bits of a number are about its logarithm, so that their difference from a constant is within an eighth
/// of the reciprocal. A step of third and one of second order follow.
#[inline(always)]
fn reciprocal_near(x: f32) -> f32 {
    let y = f32::from_bits(0x7ef3_11c7u32.wrapping_sub(x.to_bits()));
    let e = (-x).mul_add(y, 1.0);
    let y = e.mul_add(e, e).mul_add(y, y);
    (-x).mul_add(y, 1.0).mul_add(y, y)
}

/// `ln(1 + eˣ)`.
#[inline(always)]
pub(crate) fn softplus(x: f32) -> f32 {
    // What `1 + y` lost of a small `y` is put right by what is left of it (Kahan).
    let y = exp(-x.abs());
    let sum = 1.0 + y;
    let kept = sum - 1.0;
    x.max(0.0) + if kept == 0.0 { y } else { ln(sum) * (y / kept) }
}

/// Error function, within 4e-7 absolute: its series below 1/2, above that Abramowitz and Stegun,
/// Handbook of Mathematical Functions, 7.1.26.
#[inline(always)]
pub(crate) fn erf(x: f32) -> f32 {
    let a = x.abs();
    let q = x * x;
    let mut p = 1.0 / 9360.0;
    for c in [-1.0 / 1320.0, 1.0 / 216.0, -1.0 / 42.0, 0.1, -1.0 / 3.0, 1.0] {
        p = q.mul_add(p, c);
    }
    let small = x * p * std::f32::consts::FRAC_2_SQRT_PI;
    let t = 1.0 / 0.327_591_1f32.mul_add(a, 1.0);
    let mut p = 1.061_405_4f32;
    for c in [-1.453_152_1, 1.421_413_8, -0.284_496_72, 0.254_829_6] {
        p = t.mul_add(p, c);
    }
    let large = (1.0 - p * t * exp(-q)).copysign(x);
    if a < 0.5 { small } else { large }
}

/// `x/2 · (1 + erf(x/√2))`.
#[inline(always)]
pub(crate) fn gelu_erf(x: f32) -> f32 {
    0.5 * x * (1.0 + erf(x * FRAC_1_SQRT_2))
}

/// `x/2 · (1 + tanh(√(2/π)(x + 0.044715x³)))`.
#[inline(always)]
pub(crate) fn gelu_tanh(x: f32) -> f32 {
    const SQRT_2_OVER_PI: f32 = 0.797_884_6;
    0.5 * x * (1.0 + tanh(SQRT_2_OVER_PI * (0.044_715 * x * x).mul_add(x, x)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Abramowitz and Stegun 7.1.5 and 7.1.23 in f64: series below 3, continued fraction above.
    fn erf_exact(x: f64) -> f64 {
        if x.abs() < 3.0 {
            let (mut term, mut sum) = (x, x);
            for n in 1..200 {
                term *= -x * x / n as f64;
                sum += term / (2 * n + 1) as f64;
            }
            return sum * std::f64::consts::FRAC_2_SQRT_PI;
        }
        let mut fraction = 0.0;
        for n in (1..60).rev() {
            fraction = (n as f64 / 2.0) / (x.abs() + fraction);
        }
        let tail = (-x * x).exp() / (x.abs() + fraction) / std::f64::consts::PI.sqrt();
        (1.0 - tail).copysign(x)
    }

    fn check(name: &str, f: fn(f32) -> f32, exact: fn(f64) -> f64, low: f32, high: f32, relative: f64, absolute: f64) {
        for step in 0..=200_000 {
            let x = low + (high - low) * step as f32 / 200_000.0;
            let (got, want) = (f(x) as f64, exact(x as f64));
            let allowed = relative * want.abs() + absolute;
            assert!((got - want).abs() <= allowed, "{name}({x}) = {got}, expected {want}");
        }
    }

    #[test]
    fn functions_stay_within_their_errors() {
        check("exp", exp, f64::exp, -87.0, 88.7, 2.4e-7, 0.0);
        check("exp down", exp_down, f64::exp, -86.9, 0.0, 2.4e-7, 0.0);
        check("ln", ln, f64::ln, 1e-30, 1e3, 2.4e-7, 6e-8);
        check("tanh", tanh, f64::tanh, -12.0, 12.0, 4e-7, 0.0);
        check("sigmoid", sigmoid, |x| 1.0 / (1.0 + (-x).exp()), -80.0, 80.0, 4e-7, 0.0);
        check("near sigmoid", sigmoid_near, |x| 1.0 / (1.0 + (-x).exp()), -90.0, 90.0, 1e-4, 1e-34);
        check("erf", erf, erf_exact, -6.0, 6.0, 0.0, 4e-7);
        check("gelu", gelu_erf, |x| 0.5 * x * (1.0 + erf_exact(x / 2f64.sqrt())), -8.0, 8.0, 4e-7, 1.2e-6);
        check("softplus", softplus, |x| x.max(0.0) + (-x.abs()).exp().ln_1p(), -20.0, 90.0, 4e-7, 2e-7);
    }

    #[test]
    fn edges_are_exact() {
        assert_eq!(exp(f32::NEG_INFINITY), 0.0);
        assert_eq!([exp(0.0), exp_down(0.0), exp_down(-0.0)], [1.0; 3]);
        assert_eq!([-87f32, -1e9, f32::NEG_INFINITY].map(exp_down), [0.0; 3]);
        assert!(exp_down(-86.8) > 0.0);
        // Whatever a NaN carries.
        let nans = [0x7fc0_0000, 0x7fc0_0001, 0x7fff_ffff, 0xffff_ffff, 0x7f80_0001].map(f32::from_bits);
        assert!(nans.iter().all(|&nan| nan.is_nan() && exp_down(nan).is_nan() && exp(nan).is_nan()));
        assert_eq!(exp(f32::INFINITY), f32::INFINITY);
        assert!(sigmoid_near(f32::NAN).is_nan());
        assert!(exp(f32::NAN).is_nan() && ln(f32::NAN).is_nan() && tanh(f32::NAN).is_nan());
        assert_eq!((ln(0.0), ln(1.0)), (f32::NEG_INFINITY, 0.0));
        assert!(ln(-1.0).is_nan());
        assert_eq!(ln(f32::INFINITY), f32::INFINITY);
        assert!((ln(1e-40) as f64 - 1e-40f32 as f64).is_finite());
        assert_eq!((tanh(f32::INFINITY), tanh(-0.0).to_bits()), (1.0, (-0.0f32).to_bits()));
        assert_eq!((sigmoid(-200.0), sigmoid(200.0)), (0.0, 1.0));
        // Its logarithm is nearly the number itself.
        assert!([-20f32, -40.0, -80.0].iter().all(|&x| (softplus(x).ln() - x).abs() < 1e-4 && softplus(x) > 0.0));
    }
}
