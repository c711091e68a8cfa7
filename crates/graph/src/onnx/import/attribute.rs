//! Attributes of nodes.

use super::file::External;
use super::tensor::{dtype_from_code, read, read_sparse};
use crate::onnx::Attribute;
use crate::onnx::proto::{AttributeProto, TypeProto, attribute_proto::AttributeType, type_proto};
use halimede_tensor::DType;

/// The value of an attribute that is not a graph; `None` where it has none.
pub(super) fn value(proto: &AttributeProto, external: &mut External) -> Result<Option<Attribute>, String> {
    Ok(Some(match kind(proto) {
        AttributeType::Float => Attribute::Float(proto.f()),
        AttributeType::Int => Attribute::Int(proto.i()),
        AttributeType::String => Attribute::String(proto.s().to_vec()),
        AttributeType::Tensor => match &proto.t {
            Some(tensor) => Attribute::Tensor(read(tensor, external)?),
            None => return Err("holds no tensor".to_owned()),
        },
        AttributeType::SparseTensor => match &proto.sparse_tensor {
            Some(tensor) => Attribute::Tensor(read_sparse(tensor, external)?),
            None => return Err("holds no tensor".to_owned()),
        },
        AttributeType::Floats => Attribute::Floats(proto.floats.clone()),
        AttributeType::Ints => Attribute::Ints(proto.ints.clone()),
        AttributeType::Strings => Attribute::Strings(proto.strings.iter().map(|s| s.to_vec()).collect()),
        AttributeType::Tensors => {
            Attribute::Tensors(proto.tensors.iter().map(|tensor| read(tensor, external)).collect::<Result<_, _>>()?)
        }
        AttributeType::SparseTensors => Attribute::Tensors(
            proto.sparse_tensors.iter().map(|tensor| read_sparse(tensor, external)).collect::<Result<_, _>>()?,
        ),
        AttributeType::TypeProto => Attribute::Type(proto.tp.as_ref().and_then(innermost)),
        AttributeType::TypeProtos | AttributeType::Graphs | AttributeType::Graph => {
            return Err("a list of types or graphs, which no operator takes".to_owned());
        }
        AttributeType::Undefined => return Ok(None),
    }))
}

/// Which field holds the value. Before IR version 2 no type was written: the field that is set tells.
pub(super) fn kind(proto: &AttributeProto) -> AttributeType {
    match proto.r#type() {
        AttributeType::Undefined => {}
        known => return known,
    }
    let set = [
        (proto.f.is_some(), AttributeType::Float),
        (proto.i.is_some(), AttributeType::Int),
        (proto.s.is_some(), AttributeType::String),
        (proto.t.is_some(), AttributeType::Tensor),
        (proto.g.is_some(), AttributeType::Graph),
        (!proto.floats.is_empty(), AttributeType::Floats),
        (!proto.strings.is_empty(), AttributeType::Strings),
        (!proto.tensors.is_empty(), AttributeType::Tensors),
    ];
    // An empty list of whatever type arrives as a list of integers.
    set.into_iter().find_map(|(set, kind)| set.then_some(kind)).unwrap_or(AttributeType::Ints)
}

/// The datatype of the tensor at the bottom of a type.
fn innermost(proto: &TypeProto) -> Option<DType> {
    match proto.value.as_ref()? {
        type_proto::Value::TensorType(tensor) => dtype_from_code(tensor.elem_type().into()),
        type_proto::Value::SparseTensorType(tensor) => dtype_from_code(tensor.elem_type().into()),
        type_proto::Value::SequenceType(sequence) => innermost(sequence.elem_type.as_deref()?),
        type_proto::Value::OptionalType(optional) => innermost(optional.elem_type.as_deref()?),
        type_proto::Value::MapType(_) | type_proto::Value::OpaqueType(_) => None,
    }
}
