use crate::{Fact, Kind, OpError};
use halimede_tensor::{DType, Tensor, Value};

/// An input that must be there.
pub fn given(inputs: &[Option<Value>], index: usize) -> Result<&Value, OpError> {
    inputs.get(index).and_then(Option::as_ref).ok_or_else(|| OpError::invalid(format!("input {index} is missing")))
}

/// The values of a sequence, or of an optional that holds one.
pub fn sequence(value: &Value) -> Result<&[Value], OpError> {
    match value {
        Value::Sequence(values) => Ok(values),
        Value::Optional(Some(inner)) => sequence(inner),
        Value::Optional(None) => Err(OpError::invalid("expected a sequence, got an empty optional")),
        Value::Tensor(_) => Err(OpError::invalid("expected a sequence, got a tensor")),
    }
}

/// A position in a sequence, negative ones counted from the end, below `end`.
pub fn position(value: &Value, len: usize, end: usize) -> Result<usize, OpError> {
    let tensor = value.tensor()?;
    let position = match (tensor.dtype(), tensor.len()) {
        (DType::I64, 1) => tensor.slice::<i64>()?[0],
        (DType::I32, 1) => tensor.slice::<i32>()?[0].into(),
        (dtype, _) => {
            let shape = tensor.shape();
            return Err(OpError::invalid(format!("a position is one i32 or i64, not {dtype} of shape {shape:?}")));
        }
    };
    let resolved = if position < 0 { position.saturating_add(len as i64) } else { position };
    usize::try_from(resolved)
        .ok()
        .filter(|&position| position < end)
        .ok_or_else(|| OpError::invalid(format!("position {position} lies outside a sequence of {len}")))
}

/// A tensor with one integer and no dimensions.
pub fn scalar(value: usize) -> Value {
    Tensor::scalar(value as i64).into()
}

/// A sequence of tensors of a datatype.
pub fn sequence_fact(dtype: Option<DType>) -> Fact {
    Fact { kind: Kind::Sequence, dtype, ..Fact::default() }
}

/// The datatype of the first input that is known.
pub fn first_dtype(inputs: &[Option<&Fact>]) -> Option<DType> {
    inputs.iter().flatten().find_map(|fact| fact.dtype)
}
