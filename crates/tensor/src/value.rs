use crate::{Tensor, TensorError};

/// What flows along an edge of a model.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// A tensor.
    Tensor(Tensor),
    /// A sequence of values of one type.
    Sequence(Vec<Value>),
    /// A value or nothing.
    Optional(Option<Box<Value>>),
}

impl Value {
    /// The tensor; an error for a sequence or an optional.
    pub fn tensor(&self) -> Result<&Tensor, TensorError> {
        match self {
            Value::Tensor(tensor) => Ok(tensor),
            // An optional that holds a tensor reads as that tensor (ONNX passes them alike).
            Value::Optional(Some(inner)) => inner.tensor(),
            Value::Sequence(_) => Err(TensorError::Kind("a sequence")),
            Value::Optional(None) => Err(TensorError::Kind("an empty optional")),
        }
    }
}

impl From<Tensor> for Value {
    fn from(tensor: Tensor) -> Value {
        Value::Tensor(tensor)
    }
}
