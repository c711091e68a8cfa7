//! Values that are stored outside a model, as in ONNX's test cases.

use super::decode::decode;
use super::file::External;
use super::{ValueType, tensor};
use crate::onnx::proto::{OptionalProto, SequenceProto, TensorProto, optional_proto, sequence_proto};
use bytes::Bytes;
use halimede_tensor::{Tensor, Value};

/// The tensor in a serialized `TensorProto`.
pub fn read_tensor(bytes: Bytes) -> Result<Tensor, String> {
    decode_tensor(&decode("TensorProto", bytes)?)
}

/// The value of a known type in a serialized `TensorProto`, `SequenceProto` or `OptionalProto`.
pub fn read_value(bytes: Bytes, value_type: &ValueType) -> Result<Value, String> {
    match value_type {
        ValueType::Tensor => Ok(read_tensor(bytes)?.into()),
        ValueType::Sequence(_) => sequence(&decode("SequenceProto", bytes)?),
        ValueType::Optional(_) => optional(&decode("OptionalProto", bytes)?),
        ValueType::Map => Err("maps are not read".to_owned()),
    }
}

fn decode_tensor(proto: &TensorProto) -> Result<Tensor, String> {
    tensor::read(proto, &mut External::new(None))
}

fn sequence(proto: &SequenceProto) -> Result<Value, String> {
    use sequence_proto::DataType;
    let external = &mut External::new(None);
    let elements: Result<Vec<Value>, String> = match DataType::try_from(proto.elem_type()) {
        Ok(DataType::Undefined) => Ok(Vec::new()),
        Ok(DataType::Tensor) => proto.tensor_values.iter().map(|t| Ok(decode_tensor(t)?.into())).collect(),
        Ok(DataType::SparseTensor) => {
            proto.sparse_tensor_values.iter().map(|t| Ok(tensor::read_sparse(t, external)?.into())).collect()
        }
        Ok(DataType::Sequence) => proto.sequence_values.iter().map(sequence).collect(),
        Ok(DataType::Optional) => proto.optional_values.iter().map(optional).collect(),
        Ok(DataType::Map) | Err(_) => Err(format!("a sequence of elements of kind {}", proto.elem_type())),
    };
    Ok(Value::Sequence(elements?))
}

fn optional(proto: &OptionalProto) -> Result<Value, String> {
    use optional_proto::DataType;
    let inner = match DataType::try_from(proto.elem_type()) {
        Ok(DataType::Undefined) => None,
        Ok(DataType::Tensor) => proto.tensor_value.as_ref().map(|t| decode_tensor(t).map(Value::from)).transpose()?,
        Ok(DataType::SparseTensor) => proto
            .sparse_tensor_value
            .as_ref()
            .map(|t| tensor::read_sparse(t, &mut External::new(None)).map(Value::from))
            .transpose()?,
        Ok(DataType::Sequence) => proto.sequence_value.as_ref().map(sequence).transpose()?,
        Ok(DataType::Optional) => proto.optional_value.as_deref().map(optional).transpose()?,
        Ok(DataType::Map) | Err(_) => return Err(format!("an optional of kind {}", proto.elem_type())),
    };
    Ok(Value::Optional(inner.map(Box::new)))
}
