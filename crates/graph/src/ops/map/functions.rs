//! What each function of one or two numbers gives, once for f32, once for f64 and once for integers.

use super::{Binary, Unary};
use halimede_tensor::DType;

/// The functions that f32 and f64 share by name.
pub(super) trait Real: Copy + PartialOrd {
    fn unary(function: Unary, x: Self) -> Self;
    fn binary(function: Binary, a: Self, b: Self) -> Self;
    fn is_nan(self) -> bool;
    fn is_infinite(self) -> bool;
}

macro_rules! real {
    ($t:ident, $erf:path) => {
        impl Real for $t {
            fn unary(function: Unary, x: $t) -> $t {
                use Unary::*;
                match function {
                    Abs => x.abs(),
                    Neg => -x,
                    Sign if x == 0.0 || x.is_nan() => x,
                    Sign => x.signum(),
                    Sqrt => x.sqrt(),
                    Reciprocal => 1.0 / x,
                    Exp => x.exp(),
                    Log => x.ln(),
                    Floor => x.floor(),
                    Ceil => x.ceil(),
                    Round => x.round_ties_even(),
                    Sin => x.sin(),
                    Cos => x.cos(),
                    Tan => x.tan(),
                    Asin => x.asin(),
                    Acos => x.acos(),
                    Atan => x.atan(),
                    Sinh => x.sinh(),
                    Cosh => x.cosh(),
                    Tanh => x.tanh(),
                    Asinh => x.asinh(),
                    Acosh => x.acosh(),
                    Atanh => x.atanh(),
                    Erf => $erf(x),
                    Sigmoid => 1.0 / (1.0 + (-x).exp()),
                    Softplus if x.is_nan() => x,
                    Softplus => x.max(0.0) + (-x.abs()).exp().ln_1p(),
                    GeluErf => 0.5 * x * (1.0 + $erf(x * std::$t::consts::FRAC_1_SQRT_2)),
                    GeluTanh => {
                        let inner = (2.0 / std::$t::consts::PI).sqrt() * (x + 0.044715 * x * x * x);
                        0.5 * x * (1.0 + inner.tanh())
                    }
                    // The limit at -inf is 0, which the quotient gives as -inf / inf.
                    Silu | QuickGelu if x == <$t>::NEG_INFINITY => 0.0,
                    QuickGelu => x / (1.0 + (-1.702 * x).exp()),
                    HardSwish => x * (x / 6.0 + 0.5).clamp(0.0, 1.0),
                    Silu => x / (1.0 + (-x).exp()),
                    // To Bool or of integers only; `Map::types` refuses them here.
                    Not | BitNot | IsNan | IsInf => x,
                }
            }

            fn binary(function: Binary, a: $t, b: $t) -> $t {
                use Binary::*;
                match function {
                    Add => a + b,
                    Sub => a - b,
                    Mul => a * b,
                    Div => a / b,
                    Pow => a.powf(b),
                    Fmod => a % b,
                    Mod => match a % b {
                        0.0 => (0.0 as $t).copysign(b),
                        rest if (rest < 0.0) != (b < 0.0) => rest + b,
                        rest => rest,
                    },
                    Min if a.is_nan() => a,
                    Min => {
                        if b < a || b.is_nan() {
                            b
                        } else {
                            a
                        }
                    }
                    Max if a.is_nan() => a,
                    Max => {
                        if b > a || b.is_nan() {
                            b
                        } else {
                            a
                        }
                    }
                    Atan2 => a.atan2(b),
                    _ => a,
                }
            }

            fn is_nan(self) -> bool {
                $t::is_nan(self)
            }

            fn is_infinite(self) -> bool {
                $t::is_infinite(self)
            }
        }
    };
}

real!(f32, libm::erff);
real!(f64, libm::erf);

/// A function of one number that gives Bool.
pub(super) fn test<T: Real>(function: Unary, x: T) -> i64 {
    i64::from(match function {
        Unary::IsNan => x.is_nan(),
        _ => x.is_infinite(),
    })
}

/// A comparison; `None` for other functions.
pub(super) fn compare<T: PartialOrd>(function: Binary, a: T, b: T) -> Option<i64> {
    Some(i64::from(match function {
        Binary::Equal => a == b,
        Binary::Less => a < b,
        Binary::LessOrEqual => a <= b,
        Binary::Greater => a > b,
        Binary::GreaterOrEqual => a >= b,
        _ => return None,
    }))
}

/// A function of one integer, before it is cut to its datatype.
pub(super) fn integer_unary(function: Unary, x: i64, dtype: DType) -> i64 {
    match function {
        Unary::Abs if dtype.is_signed_integer() => x.wrapping_abs(),
        Unary::Neg => x.wrapping_neg(),
        Unary::Sign if dtype.is_signed_integer() => x.signum(),
        Unary::Sign => i64::from(x != 0),
        Unary::Not => i64::from(x == 0),
        Unary::BitNot => !x,
        _ => x,
    }
}

/// A function of two integers of one datatype, before it is cut to that.
pub(super) fn integer_binary(function: Binary, a: i64, b: i64, dtype: DType) -> i64 {
    use Binary::*;
    // Signed arithmetic on 64 bits is right for every other type: they fit with room to spare.
    let unsigned = dtype == DType::U64;
    let (x, y) = (a as u64, b as u64);
    match function {
        Add => a.wrapping_add(b),
        Sub => a.wrapping_sub(b),
        Mul => a.wrapping_mul(b),
        Div | Mod | Fmod if b == 0 => 0,
        Div if unsigned => (x / y) as i64,
        Div => a.wrapping_div(b),
        Mod | Fmod if unsigned => (x % y) as i64,
        Fmod => a.wrapping_rem(b),
        Mod => {
            let rest = a.wrapping_rem(b);
            if rest != 0 && (rest < 0) != (b < 0) { rest + b } else { rest }
        }
        Pow => power(a, b, unsigned),
        Min if unsigned => x.min(y) as i64,
        Max if unsigned => x.max(y) as i64,
        Min => a.min(b),
        Max => a.max(b),
        And | BitAnd => a & b,
        Or | BitOr => a | b,
        Xor | BitXor => a ^ b,
        Shl => {
            if y < 64 {
                a << y
            } else {
                0
            }
        }
        Shr if unsigned => {
            if y < 64 {
                (x >> y) as i64
            } else {
                0
            }
        }
        Shr => a >> y.min(63),
        Equal | Less | LessOrEqual | Greater | GreaterOrEqual | Atan2 => a,
    }
}

/// `base` to a power, wrapping; a negative exponent of a whole number cuts to 0 but for ±1.
fn power(base: i64, exponent: i64, unsigned: bool) -> i64 {
    if exponent < 0 && !unsigned {
        return match base {
            1 => 1,
            -1 if exponent % 2 == 0 => 1,
            -1 => -1,
            _ => 0,
        };
    }
    let (mut result, mut square, mut rest) = (1i64, base, exponent as u64);
    while rest > 0 {
        if rest & 1 == 1 {
            result = result.wrapping_mul(square);
        }
        square = square.wrapping_mul(square);
        rest >>= 1;
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remainders_take_their_signs() {
        let f = |function, a: f32, b: f32| f32::binary(function, a, b);
        assert_eq!([f(Binary::Mod, -4.5, 2.0), f(Binary::Fmod, -4.5, 2.0)], [1.5, -0.5]);
        assert_eq!([f(Binary::Mod, 4.0, -2.0), f(Binary::Mod, 5.0, -3.0)], [-0.0, -1.0]);
        let i = |function, a, b| integer_binary(function, a, b, DType::I32);
        assert_eq!([i(Binary::Mod, -4, 3), i(Binary::Fmod, -4, 3), i(Binary::Mod, 4, -3)], [2, -1, -2]);
    }

    #[test]
    fn integers_never_panic() {
        let all = [i64::MIN, i64::MAX, -1, 0, 1, 64, -64];
        use Binary::*;
        for function in [Add, Sub, Mul, Div, Pow, Mod, Fmod, Min, Max, BitAnd, BitOr, BitXor, Shl, Shr] {
            for a in all {
                for b in all {
                    for dtype in [DType::I64, DType::U64] {
                        integer_binary(function, a, b, dtype);
                    }
                }
            }
        }
        assert_eq!(integer_binary(Div, 7, 0, DType::I32), 0);
        assert_eq!(integer_binary(Div, i64::MIN, -1, DType::I64), i64::MIN);
        assert_eq!(integer_binary(Div, -1, 2, DType::U64), i64::MAX);
        assert_eq!([power(3, 4, false), power(-1, -3, false), power(2, -1, false)], [81, -1, 0]);
    }

    #[test]
    fn nan_wins() {
        for function in [Binary::Min, Binary::Max] {
            assert!(f32::binary(function, f32::NAN, 1.0).is_nan());
            assert!(f32::binary(function, 1.0, f32::NAN).is_nan());
        }
        assert!(f32::unary(Unary::Softplus, f32::NAN).is_nan());
        assert!(f32::unary(Unary::Sign, f32::NAN).is_nan());
    }

    #[test]
    fn far_from_zero() {
        assert_eq!([-200.0, 200.0].map(|x| f32::unary(Unary::Sigmoid, x)), [0.0, 1.0]);
        assert_eq!([-200.0, 200.0].map(|x| f32::unary(Unary::Softplus, x)), [0.0, 200.0]);
        assert_eq!([-200.0, 200.0].map(|x| f32::unary(Unary::Silu, x)), [0.0, 200.0]);
        assert_eq!(f32::unary(Unary::Softplus, f32::INFINITY), f32::INFINITY);
    }
}
