//! How much memory values take, for the bound on a run.

use halimede_graph::Fact;
use halimede_tensor::{DType, Tensor, Value};

/// What a string costs besides its bytes.
const STRING_BYTES: usize = size_of::<Vec<u8>>();

/// What a tensor costs at most besides its elements: itself, twice more while a list of such grows or is joined, the owner
/// of its memory, and what the allocator adds to both.
const TENSOR_BYTES: usize = 3 * size_of::<Value>() + 256;

/// Bytes of a value, without what it shares with others taken off.
pub(crate) fn value_bytes(value: &Value) -> usize {
    match value {
        Value::Tensor(tensor) => tensor_bytes(tensor),
        Value::Sequence(values) => {
            values.iter().map(value_bytes).fold(size_of_val(values.as_slice()), usize::saturating_add)
        }
        Value::Optional(value) => value.as_deref().map_or(0, value_bytes),
    }
}

fn tensor_bytes(tensor: &Tensor) -> usize {
    let elements = match tensor.strings() {
        Ok(strings) => strings.iter().map(|string| string.len() + STRING_BYTES).sum(),
        Err(_) => tensor.len() * tensor.dtype().size(),
    };
    elements + tensor.rank() * size_of::<usize>() + TENSOR_BYTES
}

/// Bytes of a value of which only this is known; 0 where its size is not.
pub(crate) fn expected_bytes(fact: &Fact) -> usize {
    let (Some(dtype), Some(shape)) = (fact.dtype, fact.known_shape()) else { return 0 };
    let size = if dtype == DType::String { STRING_BYTES } else { dtype.size() };
    if shape.contains(&0) {
        return 0;
    }
    shape.iter().fold(size, |bytes, &dim| bytes.saturating_mul(dim))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_of_values() {
        let tensor = Value::from(Tensor::from_slice(&[3], &[1f32, 2.0, 3.0]).unwrap());
        let one = TENSOR_BYTES + size_of::<usize>();
        assert_eq!(value_bytes(&tensor), one + 12);
        let strings = Tensor::from_strings(&[2], vec![b"ab".to_vec(), Vec::new()]).unwrap();
        assert_eq!(value_bytes(&strings.into()), one + 2 + 2 * STRING_BYTES);
        let optional = Value::Optional(Some(Box::new(tensor.clone())));
        assert_eq!(value_bytes(&optional), one + 12);
        assert!(value_bytes(&Value::Sequence(vec![tensor.clone(), tensor])) >= 2 * one + 24);
    }

    #[test]
    fn expected_bytes_do_not_overflow() {
        let fact = |shape: &[usize]| Fact::tensor(DType::F32, shape.iter().map(|&dim| dim.into()));
        assert_eq!(expected_bytes(&fact(&[2, 3])), 24);
        assert_eq!(expected_bytes(&fact(&[0, usize::MAX / 16])), 0);
        assert_eq!(expected_bytes(&fact(&[1 << 40, 1 << 40])), usize::MAX);
        assert_eq!(expected_bytes(&Fact::default()), 0);
    }
}
