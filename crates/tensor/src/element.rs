use crate::DType;
use half::{bf16, f16};

/// A Rust type that is the in-memory form of at least one [`DType`].
///
/// `u8` reads every byte-sized type whose values are bit patterns (Bool, the narrow unsigned types,
/// the 8- and 4-bit floats), `i8` the narrow signed ones.
pub trait Element: bytemuck::Pod + Send + Sync + PartialOrd + std::fmt::Debug + 'static {
    /// The datatype that a tensor made from this type gets.
    const DTYPE: DType;
    /// Whether a tensor of `dtype` may be read as this type.
    fn reads(dtype: DType) -> bool {
        dtype == Self::DTYPE
    }
}

macro_rules! element {
    ($($t:ty => $d:ident),*) => { $(impl Element for $t { const DTYPE: DType = DType::$d; })* };
}
element!(u16 => U16, i16 => I16, u32 => U32, i32 => I32, u64 => U64, i64 => I64, f16 => F16, bf16 => Bf16, f32 => F32, f64 => F64);

impl Element for u8 {
    const DTYPE: DType = DType::U8;
    fn reads(dtype: DType) -> bool {
        dtype.size() == 1 && !dtype.is_signed_integer()
    }
}

impl Element for i8 {
    const DTYPE: DType = DType::I8;
    fn reads(dtype: DType) -> bool {
        dtype.size() == 1 && dtype.is_signed_integer()
    }
}

/// A complex number as two interleaved reals.
impl Element for [f32; 2] {
    const DTYPE: DType = DType::Complex64;
}

/// A complex number as two interleaved reals.
impl Element for [f64; 2] {
    const DTYPE: DType = DType::Complex128;
}
