//! Tables from values to values, for encoders.

use crate::OpError;
use halimede_tensor::{DType, Tensor};

/// An element as something that can be looked up. Floats compare by value, and NaN with itself.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Key {
    /// An integer.
    Int(i64),
    /// A float's bits, zero without its sign.
    Float(u64),
    /// A text.
    Text(Vec<u8>),
}

/// Every element of a tensor as a key.
pub fn keys(tensor: &Tensor) -> Result<Vec<Key>, OpError> {
    Ok(match tensor.dtype() {
        DType::String => tensor.strings()?.iter().cloned().map(Key::Text).collect(),
        dtype if dtype.is_float() => {
            let bits = |v: f64| if v.is_nan() { f64::NAN.to_bits() } else { (v + 0.0).to_bits() };
            tensor.to_f64s()?.into_iter().map(|v| Key::Float(bits(v))).collect()
        }
        _ => tensor.to_i64s()?.into_iter().map(Key::Int).collect(),
    })
}

/// The elements of a one-dimensional tensor by index, under a shape; past the end is `default`, a tensor
/// of one element.
pub fn pick(values: &Tensor, default: &Tensor, indices: &[usize], shape: &[usize]) -> Result<Tensor, OpError> {
    if values.dtype() != default.dtype() || default.is_empty() {
        return Err(OpError::invalid(format!("values of {} with a default of {}", values.dtype(), default.dtype())));
    }
    if values.dtype() == DType::String {
        let (values, default) = (values.strings()?, &default.strings()?[0]);
        return Ok(Tensor::from_strings(
            shape,
            indices.iter().map(|&i| values.get(i).unwrap_or(default).clone()).collect(),
        )?);
    }
    let size = values.dtype().size();
    let mut picked = Tensor::zeros(values.dtype(), shape)?;
    let (bytes, default) = (values.bytes()?, default.bytes()?);
    for (out, &index) in picked.bytes_mut()?.chunks_exact_mut(size).zip(indices) {
        out.copy_from_slice(bytes.get(index * size..(index + 1) * size).unwrap_or(&default[..size]));
    }
    Ok(picked)
}
