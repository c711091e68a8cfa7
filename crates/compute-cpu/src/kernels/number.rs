//! Number types as kernels compute them.

use half::{bf16, f16};
use halimede_graph::OpError;
use halimede_tensor::{DType, Element};

/// An element with the type that sums of it are held in: f64 for floats, wrapping i64 for integers.
pub(super) trait Number: Element {
    type Wide: Wide;
    fn wide(self) -> Self::Wide;
    fn narrow(wide: Self::Wide) -> Self;
}

/// What [`Number`]s are computed in.
pub(super) trait Wide: Copy + PartialOrd + Send + Sync {
    const ZERO: Self;
    const ONE: Self;
    fn plus(self, other: Self) -> Self;
    fn times(self, other: Self) -> Self;
    /// NaN where either is; `unsigned` compares the bits of u64.
    fn larger(self, other: Self, unsigned: bool) -> Self;
    /// As [`Wide::larger`].
    fn smaller(self, other: Self, unsigned: bool) -> Self;
}

impl Wide for f64 {
    const ZERO: f64 = 0.0;
    const ONE: f64 = 1.0;
    fn plus(self, other: f64) -> f64 {
        self + other
    }
    fn times(self, other: f64) -> f64 {
        self * other
    }
    fn larger(self, other: f64, _unsigned: bool) -> f64 {
        if self.is_nan() || other.is_nan() { f64::NAN } else { self.max(other) }
    }
    fn smaller(self, other: f64, _unsigned: bool) -> f64 {
        if self.is_nan() || other.is_nan() { f64::NAN } else { self.min(other) }
    }
}

impl Wide for i64 {
    const ZERO: i64 = 0;
    const ONE: i64 = 1;
    fn plus(self, other: i64) -> i64 {
        self.wrapping_add(other)
    }
    fn times(self, other: i64) -> i64 {
        self.wrapping_mul(other)
    }
    fn larger(self, other: i64, unsigned: bool) -> i64 {
        if unsigned { (self as u64).max(other as u64) as i64 } else { self.max(other) }
    }
    fn smaller(self, other: i64, unsigned: bool) -> i64 {
        if unsigned { (self as u64).min(other as u64) as i64 } else { self.min(other) }
    }
}

macro_rules! number {
    ($($type:ty, $wide:ty, $value:ident => $up:expr, $down:expr;)*) => { $(
        impl Number for $type {
            type Wide = $wide;
            #[inline(always)]
            fn wide(self) -> $wide {
                let $value = self;
                $up
            }
            #[inline(always)]
            fn narrow($value: $wide) -> $type {
                $down
            }
        }
    )* };
}
number! {
    f64, f64, v => v, v;
    f32, f64, v => v.into(), v as f32;
    f16, f64, v => v.to_f64(), f16::from_f64(v);
    bf16, f64, v => v.to_f64(), bf16::from_f64(v);
    i8, i64, v => v.into(), v as i8;
    u8, i64, v => v.into(), v as u8;
    i16, i64, v => v.into(), v as i16;
    u16, i64, v => v.into(), v as u16;
    i32, i64, v => v.into(), v as i32;
    u32, i64, v => v.into(), v as u32;
    i64, i64, v => v, v;
    u64, i64, v => v as i64, v as u64;
}

/// Calls `$function::<T>` for the number type of `$dtype`, which [`check_number`] let pass.
macro_rules! by_number {
    ($dtype:expr, $function:ident($($argument:expr),* $(,)?)) => {
        match $dtype {
            DType::F64 => $function::<f64>($($argument),*),
            DType::F32 => $function::<f32>($($argument),*),
            DType::F16 => $function::<half::f16>($($argument),*),
            DType::Bf16 => $function::<half::bf16>($($argument),*),
            DType::I8 => $function::<i8>($($argument),*),
            DType::U8 => $function::<u8>($($argument),*),
            DType::I16 => $function::<i16>($($argument),*),
            DType::U16 => $function::<u16>($($argument),*),
            DType::I32 => $function::<i32>($($argument),*),
            DType::U32 => $function::<u32>($($argument),*),
            DType::I64 => $function::<i64>($($argument),*),
            DType::U64 => $function::<u64>($($argument),*),
            other => unreachable!("{other} is no number that kernels compute"),
        }
    };
}
pub(super) use by_number;

/// Whether `by_number!` knows a datatype.
pub(super) fn check_number(dtype: DType) -> Result<(), OpError> {
    let known = matches!(dtype, DType::F16 | DType::Bf16 | DType::F32 | DType::F64)
        || (dtype.is_integer() && dtype.bits() >= 8);
    if known { Ok(()) } else { Err(OpError::unsupported(format!("arithmetic on {dtype}"))) }
}
