//! Declared types of values.

use super::Reason;
use super::tensor::dtype_from_code;
use crate::onnx::proto::{TensorShapeProto, TypeProto, tensor_shape_proto, type_proto};
use crate::{Dim, Dims, Fact, Kind};
use halimede_tensor::DType;

/// What a declared type says of the value `name`. Sizes without a name become symbols of their own,
/// named after the value and the axis.
pub(super) fn fact(name: &str, proto: Option<&TypeProto>) -> Result<Fact, Reason> {
    match proto.and_then(|proto| proto.value.as_ref()) {
        None => Ok(Fact::default()),
        Some(type_proto::Value::TensorType(tensor)) => Ok(Fact {
            dtype: datatype(name, tensor.elem_type())?,
            shape: tensor.shape.as_ref().map(|shape| dims(name, shape)).transpose()?,
            ..Fact::default()
        }),
        Some(type_proto::Value::SparseTensorType(_)) => {
            Err(Reason::model(format!("'{name}' is a sparse tensor; only constants may be sparse")))
        }
        Some(type_proto::Value::SequenceType(sequence)) => {
            let dtype = element(name, sequence.elem_type.as_deref())?;
            Ok(Fact { kind: Kind::Sequence, dtype, ..Fact::default() })
        }
        Some(type_proto::Value::OptionalType(optional)) => {
            let dtype = element(name, optional.elem_type.as_deref())?;
            Ok(Fact { kind: Kind::Optional, dtype, ..Fact::default() })
        }
        // ZipMap's output, for one; the operator says what it gives instead.
        Some(type_proto::Value::MapType(_)) => Ok(Fact { kind: Kind::Sequence, ..Fact::default() }),
        Some(type_proto::Value::OpaqueType(_)) => Err(Reason::model(format!("'{name}' is of an opaque type"))),
    }
}

/// The datatype of the tensors within a sequence or an optional.
fn element(name: &str, proto: Option<&TypeProto>) -> Result<Option<DType>, Reason> {
    Ok(fact(name, proto)?.dtype)
}

fn datatype(name: &str, code: i32) -> Result<Option<DType>, Reason> {
    match code {
        0 => Ok(None),
        code => dtype_from_code(code.into()).map(Some).ok_or_else(|| {
            Reason::model(format!("'{name}' has datatype {code}, which is not one of ONNX's (1 to 26)"))
        }),
    }
}

fn dims(name: &str, shape: &TensorShapeProto) -> Result<Dims, Reason> {
    use tensor_shape_proto::dimension::Value;
    let unnamed = |axis: usize| Dim::symbol(&format!("{name}.{axis}"));
    let dims = shape.dim.iter().enumerate().map(|(axis, dim)| match &dim.value {
        Some(Value::DimParam(symbol)) if !symbol.is_empty() => Ok(Dim::symbol(symbol)),
        // -1 is how converters of other formats write an unknown size.
        None | Some(Value::DimParam(_)) | Some(Value::DimValue(-1)) => Ok(unnamed(axis)),
        Some(Value::DimValue(size)) if (0..=isize::MAX as i64 / 16).contains(size) => Ok(Dim::from(*size)),
        Some(Value::DimValue(size)) => Err(Reason::model(format!("'{name}' has size {size} on axis {axis}"))),
    });
    dims.collect()
}

/// What kind of value, to the innermost.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ValueType {
    /// A tensor; sparse ones count.
    Tensor,
    /// A sequence of values.
    Sequence(Box<ValueType>),
    /// A value or nothing.
    Optional(Box<ValueType>),
    /// A map, which only operators of ai.onnx.ml give.
    Map,
}

impl ValueType {
    /// The kind of a declared type; a tensor where nothing is declared.
    pub(super) fn of(proto: Option<&TypeProto>) -> ValueType {
        match proto.and_then(|proto| proto.value.as_ref()) {
            Some(type_proto::Value::SequenceType(t)) => {
                ValueType::Sequence(ValueType::of(t.elem_type.as_deref()).into())
            }
            Some(type_proto::Value::OptionalType(t)) => {
                ValueType::Optional(ValueType::of(t.elem_type.as_deref()).into())
            }
            Some(type_proto::Value::MapType(_)) => ValueType::Map,
            _ => ValueType::Tensor,
        }
    }
}
