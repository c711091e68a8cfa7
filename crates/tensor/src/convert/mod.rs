//! Conversions between datatypes, and tensors of any number type read as plain Rust numbers.
//!
//! The rules are those of ONNX's Cast (opset 25): floats round to the nearest, halves to even;
//! integers out of range keep their low bits; floats below 16 bits follow the tables of that text.

mod minifloat;
mod text;

pub use minifloat::{ExponentRounding, MiniFloat};

use crate::{DType, Element, Tensor, TensorError};
use half::{bf16, f16};

/// What a conversion does where a value does not fit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CastOptions {
    /// Out-of-range values become the largest finite one of an 8-bit float instead of NaN or infinity.
    pub saturate: bool,
    /// How a number becomes a power of two (f8e8m0 only).
    pub exponent_rounding: ExponentRounding,
}

impl Default for CastOptions {
    fn default() -> CastOptions {
        CastOptions { saturate: true, exponent_rounding: ExponentRounding::Up }
    }
}

/// The elements of a tensor in the widest type of their kind, which holds each exactly.
enum Numbers {
    Signed(Vec<i64>),
    Unsigned(Vec<u64>),
    Float(Vec<f64>),
}

impl Tensor {
    /// This tensor as another datatype; shares the data where it has that one already.
    pub fn cast(&self, to: DType, options: CastOptions) -> Result<Tensor, TensorError> {
        match (self.dtype(), to) {
            (from, to) if from == to => return Ok(self.clone()),
            (DType::String, to) => return text::parse(self, to, options),
            (_, DType::String) => return text::print(self),
            // The casts of 16-bit models, which constant folding meets on whole weights.
            (DType::F16, DType::F32) => return convert::<f16, f32>(self, f16::to_f32),
            (DType::Bf16, DType::F32) => return convert::<bf16, f32>(self, bf16::to_f32),
            (DType::F32, DType::F16) => return convert::<f32, f16>(self, f16::from_f32),
            (DType::F32, DType::Bf16) => return convert::<f32, bf16>(self, bf16::from_f32),
            _ => {}
        }
        match numbers(self)? {
            Numbers::Signed(v) => from_signed(to, self.shape(), &v, options),
            Numbers::Unsigned(v) => from_unsigned(to, self.shape(), &v, options),
            Numbers::Float(v) => from_float(to, self.shape(), &v, options),
        }
    }

    /// The elements of a tensor of numbers or Bool, rounded to f32.
    pub fn to_f32s(&self) -> Result<Vec<f32>, TensorError> {
        Ok(match self.dtype() {
            DType::F32 => self.elements::<f32>()?.into_owned(),
            DType::F16 => self.elements::<f16>()?.iter().map(|v| v.to_f32()).collect(),
            DType::Bf16 => self.elements::<bf16>()?.iter().map(|v| v.to_f32()).collect(),
            _ => match numbers(self)? {
                Numbers::Signed(v) => v.into_iter().map(|v| v as f32).collect(),
                Numbers::Unsigned(v) => v.into_iter().map(|v| v as f32).collect(),
                Numbers::Float(v) => v.into_iter().map(|v| v as f32).collect(),
            },
        })
    }

    /// The elements of a tensor of numbers or Bool, rounded to f64.
    pub fn to_f64s(&self) -> Result<Vec<f64>, TensorError> {
        Ok(match numbers(self)? {
            Numbers::Signed(v) => v.into_iter().map(|v| v as f64).collect(),
            Numbers::Unsigned(v) => v.into_iter().map(|v| v as f64).collect(),
            Numbers::Float(v) => v,
        })
    }

    /// The elements of a tensor of numbers or Bool as i64: floats cut toward zero, u64 by its bits.
    pub fn to_i64s(&self) -> Result<Vec<i64>, TensorError> {
        Ok(match numbers(self)? {
            Numbers::Signed(v) => v,
            Numbers::Unsigned(v) => v.into_iter().map(|v| v as i64).collect(),
            Numbers::Float(v) => v.into_iter().map(|v| v as i64).collect(),
        })
    }

    /// A tensor of any number type or Bool from f32 elements, converted by the rules of Cast.
    pub fn from_f32s(dtype: DType, shape: &[usize], elements: &[f32]) -> Result<Tensor, TensorError> {
        match dtype {
            DType::F32 => Tensor::from_slice(shape, elements),
            DType::F16 => collect(dtype, shape, elements.iter().map(|&v| f16::from_f32(v))),
            DType::Bf16 => collect(dtype, shape, elements.iter().map(|&v| bf16::from_f32(v))),
            _ => Tensor::from_f64s(dtype, shape, &elements.iter().map(|&v| v.into()).collect::<Vec<f64>>()),
        }
    }

    /// A tensor of any number type or Bool from f64 elements, converted by the rules of Cast.
    pub fn from_f64s(dtype: DType, shape: &[usize], elements: &[f64]) -> Result<Tensor, TensorError> {
        from_float(dtype, shape, elements, CastOptions::default())
    }

    /// A tensor of any number type or Bool from i64 elements, converted by the rules of Cast.
    pub fn from_i64s(dtype: DType, shape: &[usize], elements: &[i64]) -> Result<Tensor, TensorError> {
        from_signed(dtype, shape, elements, CastOptions::default())
    }
}

fn numbers(tensor: &Tensor) -> Result<Numbers, TensorError> {
    fn widen<T: Element, W>(tensor: &Tensor, wide: impl Fn(T) -> W) -> Result<Vec<W>, TensorError> {
        Ok(tensor.elements::<T>()?.iter().map(|&v| wide(v)).collect())
    }
    let dtype = tensor.dtype();
    Ok(match dtype {
        DType::Bool => Numbers::Signed(widen(tensor, |v: u8| (v != 0).into())?),
        DType::I8 | DType::I4 | DType::I2 => Numbers::Signed(widen(tensor, |v: i8| v.into())?),
        DType::U8 | DType::U4 | DType::U2 => Numbers::Signed(widen(tensor, |v: u8| v.into())?),
        DType::I16 => Numbers::Signed(widen(tensor, |v: i16| v.into())?),
        DType::U16 => Numbers::Signed(widen(tensor, |v: u16| v.into())?),
        DType::I32 => Numbers::Signed(widen(tensor, |v: i32| v.into())?),
        DType::U32 => Numbers::Signed(widen(tensor, |v: u32| v.into())?),
        DType::I64 => Numbers::Signed(widen(tensor, |v: i64| v)?),
        DType::U64 => Numbers::Unsigned(widen(tensor, |v: u64| v)?),
        DType::F16 => Numbers::Float(widen(tensor, |v: f16| v.to_f64())?),
        DType::Bf16 => Numbers::Float(widen(tensor, |v: bf16| v.to_f64())?),
        DType::F32 => Numbers::Float(widen(tensor, |v: f32| v.into())?),
        DType::F64 => Numbers::Float(widen(tensor, |v: f64| v)?),
        DType::F8E4M3Fn | DType::F8E4M3FnUz | DType::F8E5M2 | DType::F8E5M2FnUz | DType::F8E8M0 | DType::F4E2M1 => {
            let table = MiniFloat::of(dtype).expect("a float below 16 bits").table();
            Numbers::Float(widen(tensor, |v: u8| table[usize::from(v)].into())?)
        }
        DType::Complex64 | DType::Complex128 | DType::String => {
            return Err(TensorError::DType { expected: "a tensor of real numbers", actual: dtype });
        }
    })
}

fn from_signed(to: DType, shape: &[usize], v: &[i64], options: CastOptions) -> Result<Tensor, TensorError> {
    let v = v.iter().copied();
    match to {
        DType::Bool => collect(to, shape, v.map(|v| u8::from(v != 0))),
        DType::U8 => collect(to, shape, v.map(|v| v as u8)),
        DType::U4 => collect(to, shape, v.map(|v| v as u8 & 15)),
        DType::U2 => collect(to, shape, v.map(|v| v as u8 & 3)),
        DType::I8 => collect(to, shape, v.map(|v| v as i8)),
        DType::I4 => collect(to, shape, v.map(|v| (v as i8) << 4 >> 4)),
        DType::I2 => collect(to, shape, v.map(|v| (v as i8) << 6 >> 6)),
        DType::U16 => collect(to, shape, v.map(|v| v as u16)),
        DType::I16 => collect(to, shape, v.map(|v| v as i16)),
        DType::U32 => collect(to, shape, v.map(|v| v as u32)),
        DType::I32 => collect(to, shape, v.map(|v| v as i32)),
        DType::U64 => collect(to, shape, v.map(|v| v as u64)),
        DType::I64 => collect(to, shape, v),
        DType::F32 => collect(to, shape, v.map(|v| v as f32)),
        _ => from_float(to, shape, &v.map(|v| v as f64).collect::<Vec<_>>(), options),
    }
}

fn from_unsigned(to: DType, shape: &[usize], v: &[u64], options: CastOptions) -> Result<Tensor, TensorError> {
    match to {
        DType::F32 => collect(to, shape, v.iter().map(|&v| v as f32)),
        to if to.is_float() => from_float(to, shape, &v.iter().map(|&v| v as f64).collect::<Vec<_>>(), options),
        // Integers keep their low bits, so the sign does not matter.
        _ => from_signed(to, shape, &v.iter().map(|&v| v as i64).collect::<Vec<_>>(), options),
    }
}

fn from_float(to: DType, shape: &[usize], v: &[f64], options: CastOptions) -> Result<Tensor, TensorError> {
    let values = v.iter().copied();
    match to {
        DType::F64 => collect(to, shape, values),
        DType::F32 => collect(to, shape, values.map(|v| v as f32)),
        DType::F16 => collect(to, shape, values.map(f16::from_f64)),
        DType::Bf16 => collect(to, shape, values.map(bf16::from_f64)),
        DType::Bool => collect(to, shape, values.map(|v| u8::from(v != 0.0))),
        DType::U64 => collect(to, shape, values.map(|v| if v < 0.0 { v as i64 as u64 } else { v as u64 })),
        DType::I32 => collect(to, shape, values.map(|v| v as i32)),
        DType::Complex64 | DType::Complex128 | DType::String => {
            Err(TensorError::DType { expected: "a datatype of real numbers", actual: to })
        }
        to => match MiniFloat::of(to) {
            Some(format) => collect(to, shape, values.map(|v| format.encode(v, options))),
            // ONNX leaves a float outside an integer's range open; what compilers do with a cast
            // through a wider integer is what models were trained against.
            None => from_signed(to, shape, &values.map(|v| v as i64).collect::<Vec<_>>(), options),
        },
    }
}

fn convert<S: Element, D: Element>(tensor: &Tensor, f: impl Fn(S) -> D) -> Result<Tensor, TensorError> {
    collect(D::DTYPE, tensor.shape(), tensor.elements::<S>()?.iter().map(|&v| f(v)))
}

/// A tensor from its elements in order; the type must be one that reads `dtype`.
fn collect<T: Element>(
    dtype: DType,
    shape: &[usize],
    elements: impl Iterator<Item = T>,
) -> Result<Tensor, TensorError> {
    let mut tensor = Tensor::zeros(dtype, shape)?;
    for (to, from) in tensor.slice_mut::<T>()?.iter_mut().zip(elements) {
        *to = from;
    }
    Ok(tensor)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cast(from: DType, values: &[f64], to: DType) -> Vec<f64> {
        let tensor = Tensor::from_f64s(from, &[values.len()], values).unwrap();
        tensor.cast(to, CastOptions::default()).unwrap().to_f64s().unwrap()
    }

    #[test]
    fn integers_keep_their_low_bits() {
        assert_eq!(cast(DType::I16, &[200.0, -1.0], DType::I8), [-56.0, -1.0]);
        assert_eq!(cast(DType::I32, &[-1.0, 256.0], DType::U8), [255.0, 0.0]);
        assert_eq!(cast(DType::I8, &[9.0, -9.0], DType::I4), [-7.0, 7.0]);
        assert_eq!(cast(DType::I8, &[3.0, 2.0, -1.0], DType::I2), [-1.0, -2.0, -1.0]);
        let big = Tensor::scalar(u64::MAX);
        assert_eq!(big.cast(DType::I64, CastOptions::default()).unwrap(), Tensor::scalar(-1i64));
        assert_eq!(big.cast(DType::F32, CastOptions::default()).unwrap(), Tensor::scalar(u64::MAX as f32));
    }

    #[test]
    fn floats_cut_toward_zero() {
        assert_eq!(cast(DType::F32, &[1.9, -1.9, 0.5, f64::NAN], DType::I32), [1.0, -1.0, 0.0, 0.0]);
        assert_eq!(cast(DType::F32, &[1e30, -1e30], DType::I64), [i64::MAX as f64, i64::MIN as f64]);
        assert_eq!(cast(DType::F32, &[-0.0, 0.1, f64::NAN], DType::Bool), [0.0, 1.0, 1.0]);
    }

    #[test]
    fn every_number_type_goes_to_every_other() {
        let numeric = |d: &DType| !matches!(d, DType::String | DType::Complex64 | DType::Complex128);
        for from in DType::ALL.into_iter().filter(numeric) {
            for to in DType::ALL.into_iter().filter(numeric) {
                assert_eq!(cast(from, &[1.0], to), [1.0], "{from} to {to}");
            }
        }
    }

    #[test]
    fn complex_numbers_and_strings_do_not_read_as_reals() {
        assert!(Tensor::scalar([1.0f32, 2.0]).to_f32s().is_err());
        assert!(Tensor::zeros(DType::String, &[1]).unwrap().to_i64s().is_err());
    }
}
