use super::common::one;
use crate::onnx::{OnnxNode, Operator, Outputs};
use crate::ops::{Expand, Op};
use crate::{Builder, OpError};
use halimede_tensor::Tensor;

/// A tensor of one value everywhere, in a shape that is an input (ONNX ConstantOfShape, opset 25).
pub static OPERATOR: Operator = Operator::new("ConstantOfShape").lower(lower);

fn lower(node: &OnnxNode, b: &mut Builder) -> Result<Option<Outputs>, OpError> {
    let value = match node.attributes.tensor("value")? {
        Some(tensor) if tensor.len() == 1 => tensor.reshaped(&[])?,
        Some(tensor) => return Err(OpError::invalid(format!("attribute 'value' holds {} elements", tensor.len()))),
        None => Tensor::scalar(0f32),
    };
    let value = b.constant(value);
    one(b.add(Op::Expand(Expand), &[value, node.input(0)?])?)
}
