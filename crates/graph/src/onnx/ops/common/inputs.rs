use crate::OpError;
use halimede_tensor::{Tensor, Value, element_count};

/// A tensor that an evaluation may be given.
pub fn optional(inputs: &[Option<Value>], index: usize) -> Result<Option<&Tensor>, OpError> {
    Ok(inputs.get(index).and_then(Option::as_ref).map(Value::tensor).transpose()?)
}

/// A tensor that an evaluation must be given.
pub fn required(inputs: &[Option<Value>], index: usize) -> Result<&Tensor, OpError> {
    optional(inputs, index)?.ok_or_else(|| OpError::invalid(format!("input {index} is missing")))
}

/// The integer that a scalar or one-element tensor holds.
pub fn integer(tensor: &Tensor) -> Result<i64, OpError> {
    match tensor.to_i64s()?[..] {
        [number] => Ok(number),
        ref list => Err(OpError::invalid(format!("expected one integer, got {} elements", list.len()))),
    }
}

/// The number that a scalar or one-element tensor holds.
pub fn number(tensor: &Tensor) -> Result<f64, OpError> {
    match tensor.to_f64s()?[..] {
        [number] => Ok(number),
        ref list => Err(OpError::invalid(format!("expected one number, got {} elements", list.len()))),
    }
}

/// Elements that a definition may make room for at once, in all: two gigabytes of f32.
const ROOM: usize = 1 << 29;

/// Number of elements of a shape that comes from attributes or values, which may say anything. A
/// definition takes its memory from the system without a way back, so it asks here first.
pub fn room(shape: &[usize]) -> Result<usize, OpError> {
    let count = element_count(shape)?;
    if count > ROOM {
        return Err(OpError::invalid(format!(
            "{count} elements of shape {shape:?}; by definition at most {ROOM} are computed"
        )));
    }
    Ok(count)
}

/// The text of a string element; ONNX's strings are UTF-8.
pub fn text(bytes: &[u8]) -> Result<&str, OpError> {
    std::str::from_utf8(bytes).map_err(|_| OpError::invalid("a string is not UTF-8"))
}
