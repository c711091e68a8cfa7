use std::fmt;

/// Every datatype of ONNX (`TensorProto.DataType`, IR version 13).
///
/// Types narrower than a byte are held one element per byte, unpacked when a model is read.
/// Integers sit sign-extended in that byte, floats as their bit pattern in the low bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(missing_docs)]
pub enum DType {
    Bool,
    U8,
    I8,
    U16,
    I16,
    U32,
    I32,
    U64,
    I64,
    F16,
    Bf16,
    F32,
    F64,
    Complex64,
    Complex128,
    /// Byte strings; ONNX says UTF-8, Triton's BYTES may hold anything.
    String,
    F8E4M3Fn,
    F8E4M3FnUz,
    F8E5M2,
    F8E5M2FnUz,
    F8E8M0,
    U4,
    I4,
    F4E2M1,
    U2,
    I2,
}

impl DType {
    /// All datatypes, in declaration order.
    pub const ALL: [DType; 26] = {
        use DType::*;
        [
            Bool, U8, I8, U16, I16, U32, I32, U64, I64, F16, Bf16, F32, F64, Complex64, Complex128, String, F8E4M3Fn,
            F8E4M3FnUz, F8E5M2, F8E5M2FnUz, F8E8M0, U4, I4, F4E2M1, U2, I2,
        ]
    };

    /// The datatype with that number in ONNX's `TensorProto.DataType`.
    pub const fn from_onnx(code: i64) -> Option<DType> {
        Some(match code {
            1 => DType::F32,
            2 => DType::U8,
            3 => DType::I8,
            4 => DType::U16,
            5 => DType::I16,
            6 => DType::I32,
            7 => DType::I64,
            8 => DType::String,
            9 => DType::Bool,
            10 => DType::F16,
            11 => DType::F64,
            12 => DType::U32,
            13 => DType::U64,
            14 => DType::Complex64,
            15 => DType::Complex128,
            16 => DType::Bf16,
            17 => DType::F8E4M3Fn,
            18 => DType::F8E4M3FnUz,
            19 => DType::F8E5M2,
            20 => DType::F8E5M2FnUz,
            21 => DType::U4,
            22 => DType::I4,
            23 => DType::F4E2M1,
            24 => DType::F8E8M0,
            25 => DType::U2,
            26 => DType::I2,
            _ => return None,
        })
    }

    /// Bytes that one element takes in memory. A string tensor has no fixed size: its elements live
    /// outside the buffer, so this says 0.
    pub const fn size(self) -> usize {
        match self {
            DType::String => 0,
            DType::Bool
            | DType::U8
            | DType::I8
            | DType::F8E4M3Fn
            | DType::F8E4M3FnUz
            | DType::F8E5M2
            | DType::F8E5M2FnUz
            | DType::F8E8M0
            | DType::U4
            | DType::I4
            | DType::F4E2M1
            | DType::U2
            | DType::I2 => 1,
            DType::U16 | DType::I16 | DType::F16 | DType::Bf16 => 2,
            DType::U32 | DType::I32 | DType::F32 => 4,
            DType::U64 | DType::I64 | DType::F64 | DType::Complex64 => 8,
            DType::Complex128 => 16,
        }
    }

    /// Bits that one element has in ONNX's own storage, where narrow types are packed. 0 for strings.
    pub const fn bits(self) -> usize {
        match self {
            DType::U4 | DType::I4 | DType::F4E2M1 => 4,
            DType::U2 | DType::I2 => 2,
            other => other.size() * 8,
        }
    }

    /// Whether this is a real floating-point type of any width.
    pub const fn is_float(self) -> bool {
        matches!(
            self,
            DType::F16
                | DType::Bf16
                | DType::F32
                | DType::F64
                | DType::F8E4M3Fn
                | DType::F8E4M3FnUz
                | DType::F8E5M2
                | DType::F8E5M2FnUz
                | DType::F8E8M0
                | DType::F4E2M1
        )
    }

    /// Whether this is an integer type of any width; Bool is none.
    pub const fn is_integer(self) -> bool {
        self.is_signed_integer() || self.is_unsigned_integer()
    }

    /// Whether this is a signed integer type.
    pub const fn is_signed_integer(self) -> bool {
        matches!(self, DType::I8 | DType::I16 | DType::I32 | DType::I64 | DType::I4 | DType::I2)
    }

    /// Whether this is an unsigned integer type.
    pub const fn is_unsigned_integer(self) -> bool {
        matches!(self, DType::U8 | DType::U16 | DType::U32 | DType::U64 | DType::U4 | DType::U2)
    }

    /// The name in this project's messages and listings, such as `f32`.
    pub const fn name(self) -> &'static str {
        match self {
            DType::Bool => "bool",
            DType::U8 => "u8",
            DType::I8 => "i8",
            DType::U16 => "u16",
            DType::I16 => "i16",
            DType::U32 => "u32",
            DType::I32 => "i32",
            DType::U64 => "u64",
            DType::I64 => "i64",
            DType::F16 => "f16",
            DType::Bf16 => "bf16",
            DType::F32 => "f32",
            DType::F64 => "f64",
            DType::Complex64 => "complex64",
            DType::Complex128 => "complex128",
            DType::String => "string",
            DType::F8E4M3Fn => "f8e4m3fn",
            DType::F8E4M3FnUz => "f8e4m3fnuz",
            DType::F8E5M2 => "f8e5m2",
            DType::F8E5M2FnUz => "f8e5m2fnuz",
            DType::F8E8M0 => "f8e8m0",
            DType::U4 => "u4",
            DType::I4 => "i4",
            DType::F4E2M1 => "f4e2m1",
            DType::U2 => "u2",
            DType::I2 => "i2",
        }
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}
