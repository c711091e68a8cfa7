use crate::OpError;
use half::{bf16, f16};
use halimede_tensor::{DType, Element, Tensor};

/// One instruction's results for a block of elements, in the type that its datatype is computed in.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Column {
    /// f16, bf16 (not rounded) and f32.
    F32(Vec<f32>),
    /// f64.
    F64(Vec<f64>),
    /// Bool as 0 and 1, every integer type; u64 by its bits.
    Int(Vec<i64>),
}

impl Column {
    /// The elements of `tensor` at `positions`.
    pub(super) fn load(tensor: &Tensor, positions: &[usize]) -> Result<Column, OpError> {
        fn read<T: Element, C>(t: &Tensor, positions: &[usize], wide: impl Fn(T) -> C) -> Result<Vec<C>, OpError> {
            let elements = t.slice::<T>()?;
            Ok(positions.iter().map(|&p| wide(elements[p])).collect())
        }
        Ok(match tensor.dtype() {
            DType::F16 => Column::F32(read(tensor, positions, f16::to_f32)?),
            DType::Bf16 => Column::F32(read(tensor, positions, bf16::to_f32)?),
            DType::F32 => Column::F32(read(tensor, positions, |v: f32| v)?),
            DType::F64 => Column::F64(read(tensor, positions, |v: f64| v)?),
            DType::Bool => Column::Int(read(tensor, positions, |v: u8| i64::from(v != 0))?),
            DType::U8 => Column::Int(read(tensor, positions, |v: u8| v.into())?),
            DType::I8 => Column::Int(read(tensor, positions, |v: i8| v.into())?),
            DType::U16 => Column::Int(read(tensor, positions, |v: u16| v.into())?),
            DType::I16 => Column::Int(read(tensor, positions, |v: i16| v.into())?),
            DType::U32 => Column::Int(read(tensor, positions, |v: u32| v.into())?),
            DType::I32 => Column::Int(read(tensor, positions, |v: i32| v.into())?),
            DType::U64 => Column::Int(read(tensor, positions, |v: u64| v as i64)?),
            DType::I64 => Column::Int(read(tensor, positions, |v: i64| v)?),
            other => return Err(OpError::invalid(format!("a map of {other}"))),
        })
    }

    /// Writes the results to `out` from element `start` on.
    pub(super) fn store(&self, out: &mut Tensor, start: usize) -> Result<(), OpError> {
        fn write<C: Copy, T: Element>(
            column: &[C],
            out: &mut Tensor,
            start: usize,
            narrow: impl Fn(C) -> T,
        ) -> Result<(), OpError> {
            for (to, &from) in out.slice_mut::<T>()?[start..].iter_mut().zip(column) {
                *to = narrow(from);
            }
            Ok(())
        }
        match (self, out.dtype()) {
            (Column::F32(v), DType::F16) => write(v, out, start, f16::from_f32),
            (Column::F32(v), DType::Bf16) => write(v, out, start, bf16::from_f32),
            (Column::F32(v), _) => write(v, out, start, |v: f32| v),
            (Column::F64(v), _) => write(v, out, start, |v: f64| v),
            (Column::Int(v), DType::Bool | DType::U8) => write(v, out, start, |v: i64| v as u8),
            (Column::Int(v), DType::I8) => write(v, out, start, |v: i64| v as i8),
            (Column::Int(v), DType::U16) => write(v, out, start, |v: i64| v as u16),
            (Column::Int(v), DType::I16) => write(v, out, start, |v: i64| v as i16),
            (Column::Int(v), DType::U32) => write(v, out, start, |v: i64| v as u32),
            (Column::Int(v), DType::I32) => write(v, out, start, |v: i64| v as i32),
            (Column::Int(v), DType::U64) => write(v, out, start, |v: i64| v as u64),
            (Column::Int(v), _) => write(v, out, start, |v: i64| v),
        }
    }

    /// The results of datatype `from` as datatype `to`, by the rules of ONNX's Cast.
    pub(super) fn cast(&self, from: DType, to: DType) -> Column {
        let wide = |v: i64| if from == DType::U64 { v as u64 as f64 } else { v as f64 };
        let single = |v: i64| if from == DType::U64 { v as u64 as f32 } else { v as f32 };
        match to {
            DType::F64 => Column::F64(match self {
                Column::F32(v) => v.iter().map(|&v| v.into()).collect(),
                Column::F64(v) => v.clone(),
                Column::Int(v) => v.iter().map(|&v| wide(v)).collect(),
            }),
            DType::F32 | DType::F16 | DType::Bf16 => Column::F32(match self {
                Column::F32(v) => v.iter().map(|&v| round(v.into(), v, to)).collect(),
                Column::F64(v) => v.iter().map(|&v| round(v, v as f32, to)).collect(),
                Column::Int(v) => v.iter().map(|&v| round(wide(v), single(v), to)).collect(),
            }),
            DType::Bool => Column::Int(match self {
                Column::F32(v) => v.iter().map(|&v| i64::from(v != 0.0)).collect(),
                Column::F64(v) => v.iter().map(|&v| i64::from(v != 0.0)).collect(),
                Column::Int(v) => v.iter().map(|&v| i64::from(v != 0)).collect(),
            }),
            to => Column::Int(match self {
                Column::F32(v) => v.iter().map(|&v| cut(v.into(), to)).collect(),
                Column::F64(v) => v.iter().map(|&v| cut(v, to)).collect(),
                Column::Int(v) => v.iter().map(|&v| wrap(v, to)).collect(),
            }),
        }
    }
}

/// A number rounded to a 16-bit float, or as f32.
fn round(wide: f64, single: f32, to: DType) -> f32 {
    match to {
        DType::F16 => f16::from_f64(wide).to_f32(),
        DType::Bf16 => bf16::from_f64(wide).to_f32(),
        _ => single,
    }
}

/// A float as an integer: as `Tensor::cast` does it.
fn cut(v: f64, to: DType) -> i64 {
    match to {
        DType::U64 if v >= 0.0 => v as u64 as i64,
        DType::I32 => (v as i32).into(),
        _ => wrap(v as i64, to),
    }
}

/// The low bits of an integer, extended by its type's sign.
pub(super) fn wrap(v: i64, dtype: DType) -> i64 {
    match dtype {
        DType::Bool => i64::from(v != 0),
        DType::U8 => (v as u8).into(),
        DType::I8 => (v as i8).into(),
        DType::U16 => (v as u16).into(),
        DType::I16 => (v as i16).into(),
        DType::U32 => (v as u32).into(),
        DType::I32 => (v as i32).into(),
        _ => v,
    }
}
