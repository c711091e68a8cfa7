//! Functions `x · s(x)`, where `s(x) = logistic(x · (a + b·x² + c·x⁴))`: SiLU and its like, and what is near both GELUs.

use crate::vector::Vector;
use halimede_graph::ops::Unary;
use std::f32::consts::LOG2_E;

/// The factors `a`, `b` and `c` of such a function, times `-log₂ e`.
#[derive(Clone, Copy)]
pub(super) struct Gate([f32; 3]);

/// The normal distribution function of `x` is about the logistic one of `x·(a + b·x² + c·x⁴)`, with these `a`,
/// `b` and `c` (fitted by least powers; `x²` counts up to 25): `x` times it is within 4e-4 of
/// `|gelu(x)| + 0.01`, a fifth of what rounding to bf16 takes.
const GELU_ERF: [f32; 3] = [1.594_300_6, 0.074_562_86, -0.000_777_513_6];
/// `(1 + tanh(y)) / 2` is the logistic function of `2·y`, here with `y = √(2/π)·(x + 0.044715·x³)`.
const GELU_TANH: [f32; 3] = [1.595_769_2, 0.071_354_814, 0.0];

impl Gate {
    /// That of a function, if it is such a one.
    pub fn of(function: Unary) -> Option<Gate> {
        let factors = match function {
            Unary::Silu => [1.0, 0.0, 0.0],
            Unary::QuickGelu => [1.702, 0.0, 0.0],
            Unary::GeluErf => GELU_ERF,
            Unary::GeluTanh => GELU_TANH,
            _ => return None,
        };
        Some(Gate(factors.map(|factor| factor * -LOG2_E)))
    }

    /// Whether there is more than the first factor.
    pub fn is_curved(self) -> bool {
        let [_, b, c] = self.0;
        b != 0.0 || c != 0.0
    }

    /// The factors in every lane.
    ///
    /// # Safety
    /// As [`Vector`].
    #[inline(always)]
    pub unsafe fn lanes<V: Vector>(self) -> [V; 3] {
        let [a, b, c] = self.0;
        // SAFETY: the caller's promise.
        unsafe { [V::splat(a), V::splat(b), V::splat(c)] }
    }
}

/// The function of every lane, by the lanes of its factors: for all registers one operation after the other, since each
/// needs the one before (`docs/benchmarks/gaps-m.md`, "Ends with functions").
///
/// # Safety
/// As [`Vector`].
#[inline(always)]
pub(super) unsafe fn pass<V: Vector, const CURVED: bool, const N: usize>([a, b, c]: [V; 3], numbers: &mut [V; N]) {
    // SAFETY: the caller's promise.
    unsafe {
        let mut shares = *numbers;
        if CURVED {
            let most = V::splat(25.0);
            for index in 0..N {
                shares[index] = numbers[index].times(numbers[index]).at_most(most);
            }
            let squares = shares;
            for index in 0..N {
                shares[index] = b.plus_product(squares[index], c);
            }
            for index in 0..N {
                shares[index] = a.plus_product(squares[index], shares[index]);
            }
            for index in 0..N {
                shares[index] = shares[index].times(numbers[index]);
            }
        } else {
            for share in &mut shares {
                *share = share.times(a);
            }
        }
        V::share_each(&mut shares);
        for index in 0..N {
            numbers[index] = numbers[index].times(shares[index]);
        }
    }
}
