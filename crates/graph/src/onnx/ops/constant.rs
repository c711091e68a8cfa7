use super::common::one;
use crate::onnx::{Attribute, OnnxNode, Operator, Outputs};
use crate::{Builder, OpError};
use halimede_tensor::Tensor;

/// A constant (ONNX Constant, opset 25).
pub static OPERATOR: Operator = Operator::new("Constant").lower(lower);

fn lower(node: &OnnxNode, b: &mut Builder) -> Result<Option<Outputs>, OpError> {
    let values: Vec<&Attribute> = node.attributes.0.values().collect();
    let [value] = values[..] else {
        return Err(OpError::invalid(format!("takes one attribute, got {}", values.len())));
    };
    let tensor = match value {
        Attribute::Tensor(tensor) => tensor.clone(),
        Attribute::Int(value) => Tensor::scalar(*value),
        Attribute::Float(value) => Tensor::scalar(*value),
        Attribute::String(value) => Tensor::from_strings(&[], vec![value.clone()])?,
        Attribute::Ints(list) => Tensor::from_slice(&[list.len()], list)?,
        Attribute::Floats(list) => Tensor::from_slice(&[list.len()], list)?,
        Attribute::Strings(list) => Tensor::from_strings(&[list.len()], list.clone())?,
        Attribute::Tensors(_) | Attribute::Type(_) | Attribute::Graph(_) => {
            return Err(OpError::invalid("takes a tensor, a number, a text, or a list of one of them"));
        }
    };
    one(b.constant(tensor))
}
