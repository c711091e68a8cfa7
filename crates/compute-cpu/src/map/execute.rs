//! The instructions on blocks.

use super::functions as f;
use super::{Class, Code, Program, Register, class};
use crate::isa::multiversion;
use crate::real::{Real, nearest};
use half::{bf16, f16};
use halimede_graph::ops::{Binary, Scalar, Unary};
use halimede_tensor::DType;

multiversion! {
    /// Runs every instruction but the loads, which the caller has done, on the first `count` elements.
    pub(crate) fn execute(program: &Program, registers: &mut [Register], count: usize) = body
}

#[inline(always)]
fn body(program: &Program, registers: &mut [Register], count: usize) {
    for (index, code) in program.codes.iter().enumerate() {
        let (earlier, rest) = registers.split_at_mut(index);
        let out = &mut rest[0];
        match *code {
            Code::Load(_) => {}
            Code::Constant(scalar) => constant(scalar, out, count),
            Code::Unary(function, x, dtype) => match class(dtype) {
                Some(Class::F32) => unary_f32(function, &earlier[x], out, count),
                Some(Class::F64) => unary_f64(function, &earlier[x], out, count),
                _ => unary_int(function, &earlier[x], out, count, dtype),
            },
            Code::Binary(function, a, b, dtype) => match class(dtype) {
                Some(Class::F32) => binary_f32(function, &earlier[a], &earlier[b], out, count),
                Some(Class::F64) => binary_f64(function, &earlier[a], &earlier[b], out, count),
                _ => binary_int(function, &earlier[a], &earlier[b], out, count, dtype),
            },
            Code::Select(condition, a, b, class) => {
                let choose = &earlier[condition].i64()[..count];
                match class {
                    Class::F32 => {
                        let (a, b) = (&earlier[a].f32()[..count], &earlier[b].f32()[..count]);
                        for (i, out) in out.f32_mut()[..count].iter_mut().enumerate() {
                            *out = if choose[i] != 0 { a[i] } else { b[i] };
                        }
                    }
                    // f64 and integers are both eight bytes that move unchanged.
                    Class::F64 | Class::Int => {
                        let (a, b) = (&earlier[a].i64()[..count], &earlier[b].i64()[..count]);
                        for (i, out) in out.i64_mut()[..count].iter_mut().enumerate() {
                            *out = if choose[i] != 0 { a[i] } else { b[i] };
                        }
                    }
                }
            }
            Code::Cast { from: DType::F32 | DType::Bf16, to: DType::F32, register } => {
                each_f32(&earlier[register], out, count, |x| x)
            }
            // So few bits are those of an i32, which vectors have instructions for.
            Code::Cast { from: DType::U8 | DType::I8 | DType::U16 | DType::I16, to: DType::F32, register } => {
                for (out, &x) in out.f32_mut()[..count].iter_mut().zip(&earlier[register].i64()[..count]) {
                    *out = x as i32 as f32;
                }
            }
            Code::Cast { from: DType::F32, to: DType::Bf16, register } => {
                each_f32(&earlier[register], out, count, |x| nearest(x).widen())
            }
            Code::Cast { from, to, register } => cast(from, to, &earlier[register], out, count),
        }
    }
}

#[inline(always)]
fn constant(scalar: Scalar, out: &mut Register, count: usize) {
    match scalar {
        Scalar::Float(value, DType::F64) => out.f64_mut()[..count].fill(value),
        Scalar::Float(value, _) => out.f32_mut()[..count].fill(value as f32),
        Scalar::Int(value, _) => out.i64_mut()[..count].fill(value),
        Scalar::Bool(value) => out.i64_mut()[..count].fill(value.into()),
    }
}

#[inline(always)]
fn each_f32(x: &Register, out: &mut Register, count: usize, function: impl Fn(f32) -> f32) {
    for (out, &x) in out.f32_mut()[..count].iter_mut().zip(&x.f32()[..count]) {
        *out = function(x);
    }
}

#[inline(always)]
fn unary_f32(function: Unary, x: &Register, out: &mut Register, count: usize) {
    match function {
        Unary::Abs => each_f32(x, out, count, f32::abs),
        Unary::Neg => each_f32(x, out, count, |x| -x),
        Unary::Sign => each_f32(x, out, count, |x| if x == 0.0 || x.is_nan() { x } else { 1f32.copysign(x) }),
        Unary::Sqrt => each_f32(x, out, count, f32::sqrt),
        Unary::Reciprocal => each_f32(x, out, count, |x| 1.0 / x),
        Unary::Exp => each_f32(x, out, count, f::exp),
        Unary::Log => each_f32(x, out, count, f::ln),
        Unary::Floor => each_f32(x, out, count, f32::floor),
        Unary::Ceil => each_f32(x, out, count, f32::ceil),
        Unary::Round => each_f32(x, out, count, f32::round_ties_even),
        Unary::Sin => each_f32(x, out, count, f32::sin),
        Unary::Cos => each_f32(x, out, count, f32::cos),
        Unary::Tan => each_f32(x, out, count, f32::tan),
        Unary::Asin => each_f32(x, out, count, f32::asin),
        Unary::Acos => each_f32(x, out, count, f32::acos),
        Unary::Atan => each_f32(x, out, count, f32::atan),
        Unary::Sinh => each_f32(x, out, count, f32::sinh),
        Unary::Cosh => each_f32(x, out, count, f32::cosh),
        Unary::Tanh => each_f32(x, out, count, f::tanh),
        Unary::Asinh => each_f32(x, out, count, f32::asinh),
        Unary::Acosh => each_f32(x, out, count, f32::acosh),
        Unary::Atanh => each_f32(x, out, count, f32::atanh),
        Unary::Erf => each_f32(x, out, count, f::erf),
        Unary::Sigmoid => each_f32(x, out, count, f::sigmoid),
        Unary::Softplus => each_f32(x, out, count, f::softplus),
        Unary::GeluErf => each_f32(x, out, count, f::gelu_erf),
        Unary::GeluTanh => each_f32(x, out, count, f::gelu_tanh),
        Unary::QuickGelu => each_f32(x, out, count, |x| x * f::sigmoid(1.702 * x)),
        Unary::Silu => each_f32(x, out, count, |x| x * f::sigmoid(x)),
        Unary::HardSwish => each_f32(x, out, count, |x| x * (x * (1.0 / 6.0) + 0.5).clamp(0.0, 1.0)),
        Unary::Not | Unary::BitNot => each_f32(x, out, count, |x| if x == 0.0 { 1.0 } else { 0.0 }),
        Unary::IsNan | Unary::IsInf => {
            for (out, &x) in out.i64_mut()[..count].iter_mut().zip(&x.f32()[..count]) {
                *out = i64::from(if function == Unary::IsNan { x.is_nan() } else { x.is_infinite() });
            }
        }
    }
}

fn erf_f64(x: f64) -> f64 {
    // The f32 form is within 4e-7; ONNX has no f64 Erf that asks for more.
    f64::from(f::erf(x as f32))
}

#[inline(always)]
fn unary_f64(function: Unary, x: &Register, out: &mut Register, count: usize) {
    let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
    let scalar: fn(f64) -> f64 = match function {
        Unary::Abs => f64::abs,
        Unary::Neg => |x| -x,
        Unary::Sign => |x| if x == 0.0 || x.is_nan() { x } else { 1f64.copysign(x) },
        Unary::Sqrt => f64::sqrt,
        Unary::Reciprocal => f64::recip,
        Unary::Exp => f64::exp,
        Unary::Log => f64::ln,
        Unary::Floor => f64::floor,
        Unary::Ceil => f64::ceil,
        Unary::Round => f64::round_ties_even,
        Unary::Sin => f64::sin,
        Unary::Cos => f64::cos,
        Unary::Tan => f64::tan,
        Unary::Asin => f64::asin,
        Unary::Acos => f64::acos,
        Unary::Atan => f64::atan,
        Unary::Sinh => f64::sinh,
        Unary::Cosh => f64::cosh,
        Unary::Tanh => f64::tanh,
        Unary::Asinh => f64::asinh,
        Unary::Acosh => f64::acosh,
        Unary::Atanh => f64::atanh,
        Unary::Erf => erf_f64,
        Unary::Sigmoid => sigmoid,
        Unary::Softplus => |x| x.max(0.0) + (-x.abs()).exp().ln_1p(),
        Unary::GeluErf => |x| 0.5 * x * (1.0 + erf_f64(x * std::f64::consts::FRAC_1_SQRT_2)),
        Unary::GeluTanh => |x| {
            let inner = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x);
            0.5 * x * (1.0 + inner.tanh())
        },
        Unary::QuickGelu => |x| x / (1.0 + (-1.702 * x).exp()),
        Unary::Silu => |x| x / (1.0 + (-x).exp()),
        Unary::HardSwish => |x| x * (x / 6.0 + 0.5).clamp(0.0, 1.0),
        Unary::Not | Unary::BitNot => |x| if x == 0.0 { 1.0 } else { 0.0 },
        Unary::IsNan | Unary::IsInf => {
            for (out, &x) in out.i64_mut()[..count].iter_mut().zip(&x.f64()[..count]) {
                *out = i64::from(if function == Unary::IsNan { x.is_nan() } else { x.is_infinite() });
            }
            return;
        }
    };
    for (out, &x) in out.f64_mut()[..count].iter_mut().zip(&x.f64()[..count]) {
        *out = scalar(x);
    }
}

/// An integer wrapped to the width of its datatype; u64 stays as its bits.
#[inline(always)]
fn wrap(x: i64, dtype: DType) -> i64 {
    match dtype {
        DType::Bool => i64::from(x != 0),
        DType::I8 => x as i8 as i64,
        DType::U8 => x as u8 as i64,
        DType::I16 => x as i16 as i64,
        DType::U16 => x as u16 as i64,
        DType::I32 => x as i32 as i64,
        DType::U32 => x as u32 as i64,
        _ => x,
    }
}

#[inline(always)]
fn each_int(x: &Register, out: &mut Register, count: usize, dtype: DType, function: impl Fn(i64) -> i64) {
    for (out, &x) in out.i64_mut()[..count].iter_mut().zip(&x.i64()[..count]) {
        *out = wrap(function(x), dtype);
    }
}

fn unary_int(function: Unary, x: &Register, out: &mut Register, count: usize, dtype: DType) {
    match function {
        Unary::Abs if dtype.is_unsigned_integer() => each_int(x, out, count, dtype, |x| x),
        Unary::Abs => each_int(x, out, count, dtype, i64::wrapping_abs),
        Unary::Neg => each_int(x, out, count, dtype, i64::wrapping_neg),
        Unary::Sign if dtype == DType::U64 => each_int(x, out, count, dtype, |x| i64::from(x != 0)),
        Unary::Sign => each_int(x, out, count, dtype, i64::signum),
        Unary::Not => each_int(x, out, count, DType::Bool, |x| i64::from(x == 0)),
        Unary::BitNot => each_int(x, out, count, dtype, |x| !x),
        Unary::Floor | Unary::Ceil | Unary::Round => each_int(x, out, count, dtype, |x| x),
        Unary::IsNan | Unary::IsInf => each_int(x, out, count, DType::Bool, |_| 0),
        // A function of real numbers on integers: computed in f64 and truncated.
        real => {
            let mut wide = Register([0; super::BLOCK]);
            for (wide, &x) in wide.f64_mut()[..count].iter_mut().zip(&x.i64()[..count]) {
                *wide = x as f64;
            }
            let mut result = Register([0; super::BLOCK]);
            unary_f64(real, &wide, &mut result, count);
            for (out, &x) in out.i64_mut()[..count].iter_mut().zip(&result.f64()[..count]) {
                *out = wrap(x as i64, dtype);
            }
        }
    }
}

#[inline(always)]
fn pairs_f32(a: &Register, b: &Register, out: &mut Register, count: usize, function: impl Fn(f32, f32) -> f32) {
    let (a, b) = (&a.f32()[..count], &b.f32()[..count]);
    for (i, out) in out.f32_mut()[..count].iter_mut().enumerate() {
        *out = function(a[i], b[i]);
    }
}

#[inline(always)]
fn compare_f32(a: &Register, b: &Register, out: &mut Register, count: usize, function: impl Fn(f32, f32) -> bool) {
    let (a, b) = (&a.f32()[..count], &b.f32()[..count]);
    for (i, out) in out.i64_mut()[..count].iter_mut().enumerate() {
        *out = i64::from(function(a[i], b[i]));
    }
}

/// The remainder with the sign of the divisor, as Python's `%`.
#[inline(always)]
fn floored_mod(a: f64, b: f64) -> f64 {
    let remainder = a % b;
    if remainder != 0.0 && (remainder < 0.0) != (b < 0.0) { remainder + b } else { remainder }
}

#[inline(always)]
fn binary_f32(function: Binary, a: &Register, b: &Register, out: &mut Register, count: usize) {
    match function {
        Binary::Add => pairs_f32(a, b, out, count, |a, b| a + b),
        Binary::Sub => pairs_f32(a, b, out, count, |a, b| a - b),
        Binary::Mul => pairs_f32(a, b, out, count, |a, b| a * b),
        Binary::Div => pairs_f32(a, b, out, count, |a, b| a / b),
        Binary::Pow => pairs_f32(a, b, out, count, f32::powf),
        Binary::Mod => pairs_f32(a, b, out, count, |a, b| floored_mod(a.into(), b.into()) as f32),
        Binary::Fmod => pairs_f32(a, b, out, count, |a, b| a % b),
        Binary::Min => pairs_f32(a, b, out, count, |a, b| if a < b || a.is_nan() { a } else { b }),
        Binary::Max => pairs_f32(a, b, out, count, |a, b| if a > b || a.is_nan() { a } else { b }),
        Binary::Atan2 => pairs_f32(a, b, out, count, f32::atan2),
        Binary::Equal => compare_f32(a, b, out, count, |a, b| a == b),
        Binary::Less => compare_f32(a, b, out, count, |a, b| a < b),
        Binary::LessOrEqual => compare_f32(a, b, out, count, |a, b| a <= b),
        Binary::Greater => compare_f32(a, b, out, count, |a, b| a > b),
        Binary::GreaterOrEqual => compare_f32(a, b, out, count, |a, b| a >= b),
        // Logic on floats has no meaning in ONNX; shape rules refuse it before.
        Binary::And | Binary::Or | Binary::Xor => pairs_f32(a, b, out, count, |_, _| f32::NAN),
        Binary::BitAnd | Binary::BitOr | Binary::BitXor | Binary::Shl | Binary::Shr => {
            pairs_f32(a, b, out, count, |_, _| f32::NAN)
        }
    }
}

fn binary_f64(function: Binary, a: &Register, b: &Register, out: &mut Register, count: usize) {
    let (a, b) = (&a.f64()[..count], &b.f64()[..count]);
    let compare: Option<fn(&f64, &f64) -> bool> = match function {
        Binary::Equal => Some(|a, b| a == b),
        Binary::Less => Some(|a, b| a < b),
        Binary::LessOrEqual => Some(|a, b| a <= b),
        Binary::Greater => Some(|a, b| a > b),
        Binary::GreaterOrEqual => Some(|a, b| a >= b),
        _ => None,
    };
    if let Some(compare) = compare {
        for (i, out) in out.i64_mut()[..count].iter_mut().enumerate() {
            *out = i64::from(compare(&a[i], &b[i]));
        }
        return;
    }
    let scalar: fn(f64, f64) -> f64 = match function {
        Binary::Add => |a, b| a + b,
        Binary::Sub => |a, b| a - b,
        Binary::Mul => |a, b| a * b,
        Binary::Div => |a, b| a / b,
        Binary::Pow => f64::powf,
        Binary::Mod => floored_mod,
        Binary::Fmod => |a, b| a % b,
        Binary::Min => |a, b| if a < b || a.is_nan() { a } else { b },
        Binary::Max => |a, b| if a > b || a.is_nan() { a } else { b },
        Binary::Atan2 => f64::atan2,
        _ => |_, _| f64::NAN,
    };
    for (i, out) in out.f64_mut()[..count].iter_mut().enumerate() {
        *out = scalar(a[i], b[i]);
    }
}

#[inline(always)]
fn pairs_int(
    a: &Register,
    b: &Register,
    out: &mut Register,
    count: usize,
    to: DType,
    function: impl Fn(i64, i64) -> i64,
) {
    let (a, b) = (&a.i64()[..count], &b.i64()[..count]);
    for (i, out) in out.i64_mut()[..count].iter_mut().enumerate() {
        *out = wrap(function(a[i], b[i]), to);
    }
}

#[inline(always)]
fn binary_int(function: Binary, a: &Register, b: &Register, out: &mut Register, count: usize, dtype: DType) {
    let wide = dtype == DType::U64;
    let bits = dtype.bits().max(8) as i64;
    let truth = DType::Bool;
    match function {
        Binary::Add => pairs_int(a, b, out, count, dtype, i64::wrapping_add),
        Binary::Sub => pairs_int(a, b, out, count, dtype, i64::wrapping_sub),
        Binary::Mul => pairs_int(a, b, out, count, dtype, i64::wrapping_mul),
        Binary::Div if wide => {
            pairs_int(a, b, out, count, dtype, |a, b| (a as u64).checked_div(b as u64).unwrap_or(0) as i64)
        }
        Binary::Div => pairs_int(a, b, out, count, dtype, |a, b| if b == 0 { 0 } else { a.wrapping_div(b) }),
        Binary::Mod | Binary::Fmod if wide => {
            pairs_int(a, b, out, count, dtype, |a, b| (a as u64).checked_rem(b as u64).unwrap_or(0) as i64)
        }
        Binary::Fmod => pairs_int(a, b, out, count, dtype, |a, b| if b == 0 { 0 } else { a.wrapping_rem(b) }),
        Binary::Mod => pairs_int(a, b, out, count, dtype, |a, b| {
            let remainder = if b == 0 { 0 } else { a.wrapping_rem(b) };
            if remainder != 0 && (remainder < 0) != (b < 0) { remainder + b } else { remainder }
        }),
        Binary::Pow => pairs_int(a, b, out, count, dtype, power),
        Binary::Min if wide => pairs_int(a, b, out, count, dtype, |a, b| (a as u64).min(b as u64) as i64),
        Binary::Max if wide => pairs_int(a, b, out, count, dtype, |a, b| (a as u64).max(b as u64) as i64),
        Binary::Min => pairs_int(a, b, out, count, dtype, i64::min),
        Binary::Max => pairs_int(a, b, out, count, dtype, i64::max),
        Binary::And => pairs_int(a, b, out, count, truth, |a, b| i64::from(a != 0 && b != 0)),
        Binary::Or => pairs_int(a, b, out, count, truth, |a, b| i64::from(a != 0 || b != 0)),
        Binary::Xor => pairs_int(a, b, out, count, truth, |a, b| i64::from((a != 0) != (b != 0))),
        Binary::BitAnd => pairs_int(a, b, out, count, dtype, |a, b| a & b),
        Binary::BitOr => pairs_int(a, b, out, count, dtype, |a, b| a | b),
        Binary::BitXor => pairs_int(a, b, out, count, dtype, |a, b| a ^ b),
        Binary::Shl => {
            pairs_int(a, b, out, count, dtype, |a, b| if (0..bits).contains(&b) { a.wrapping_shl(b as u32) } else { 0 })
        }
        Binary::Shr => pairs_int(a, b, out, count, dtype, |a, b| match (0..bits).contains(&b) {
            // Registers hold unsigned values zero-extended, so only signed ones shift their sign in.
            true if dtype.is_signed_integer() => a.wrapping_shr(b as u32),
            true => ((a as u64) >> b) as i64,
            false => 0,
        }),
        Binary::Equal => pairs_int(a, b, out, count, truth, |a, b| i64::from(a == b)),
        Binary::Less if wide => pairs_int(a, b, out, count, truth, |a, b| i64::from((a as u64) < b as u64)),
        Binary::Less => pairs_int(a, b, out, count, truth, |a, b| i64::from(a < b)),
        Binary::LessOrEqual if wide => pairs_int(a, b, out, count, truth, |a, b| i64::from(a as u64 <= b as u64)),
        Binary::LessOrEqual => pairs_int(a, b, out, count, truth, |a, b| i64::from(a <= b)),
        Binary::Greater if wide => pairs_int(a, b, out, count, truth, |a, b| i64::from(a as u64 > b as u64)),
        Binary::Greater => pairs_int(a, b, out, count, truth, |a, b| i64::from(a > b)),
        Binary::GreaterOrEqual if wide => pairs_int(a, b, out, count, truth, |a, b| i64::from(a as u64 >= b as u64)),
        Binary::GreaterOrEqual => pairs_int(a, b, out, count, truth, |a, b| i64::from(a >= b)),
        Binary::Atan2 => pairs_int(a, b, out, count, dtype, |a, b| (a as f64).atan2(b as f64) as i64),
    }
}

/// Integer power; a negative exponent gives the truncated reciprocal.
fn power(base: i64, exponent: i64) -> i64 {
    match u32::try_from(exponent) {
        Ok(exponent) => base.wrapping_pow(exponent),
        Err(_) => (base as f64).powf(exponent as f64) as i64,
    }
}

fn cast(from: DType, to: DType, x: &Register, out: &mut Register, count: usize) {
    let (Some(source), Some(target)) = (class(from), class(to)) else { return };
    match (source, target) {
        (Class::F32, Class::F32) => match to {
            DType::F16 if from != DType::F16 => each_f32(x, out, count, |x| f16::from_f32(x).to_f32()),
            DType::Bf16 if from != DType::Bf16 => each_f32(x, out, count, |x| bf16::from_f32(x).to_f32()),
            _ => each_f32(x, out, count, |x| x),
        },
        (Class::F64, Class::F32) => {
            for (out, &x) in out.f32_mut()[..count].iter_mut().zip(&x.f64()[..count]) {
                *out = match to {
                    DType::F16 => f16::from_f64(x).to_f32(),
                    DType::Bf16 => bf16::from_f64(x).to_f32(),
                    _ => x as f32,
                };
            }
        }
        (Class::F32, Class::F64) => {
            for (out, &x) in out.f64_mut()[..count].iter_mut().zip(&x.f32()[..count]) {
                *out = x.into();
            }
        }
        (Class::F64, Class::F64) => out.f64_mut()[..count].copy_from_slice(&x.f64()[..count]),
        (Class::Int, Class::Int) => each_int(x, out, count, to, |x| x),
        (Class::Int, Class::F32) => {
            for (out, &x) in out.f32_mut()[..count].iter_mut().zip(&x.i64()[..count]) {
                let wide = if from == DType::U64 { x as u64 as f32 } else { x as f32 };
                *out = match to {
                    DType::F16 => f16::from_f32(wide).to_f32(),
                    DType::Bf16 => bf16::from_f32(wide).to_f32(),
                    _ => wide,
                };
            }
        }
        (Class::Int, Class::F64) => {
            for (out, &x) in out.f64_mut()[..count].iter_mut().zip(&x.i64()[..count]) {
                *out = if from == DType::U64 { x as u64 as f64 } else { x as f64 };
            }
        }
        (Class::F32, Class::Int) => {
            for (out, &x) in out.i64_mut()[..count].iter_mut().zip(&x.f32()[..count]) {
                *out = to_int(x.into(), to);
            }
        }
        (Class::F64, Class::Int) => {
            for (out, &x) in out.i64_mut()[..count].iter_mut().zip(&x.f64()[..count]) {
                *out = to_int(x, to);
            }
        }
    }
}

/// Truncation toward zero; for Bool, whether it is not zero.
#[inline(always)]
fn to_int(x: f64, to: DType) -> i64 {
    match to {
        DType::Bool => i64::from(x != 0.0),
        DType::U64 if x >= 9.2e18 => x as u64 as i64,
        _ => wrap(x as i64, to),
    }
}
