use super::common::one;
use crate::onnx::{OnnxNode, Operator, Outputs};
use crate::{Builder, OpError};

/// The value itself: a tensor, a sequence or an optional (ONNX Identity, opset 25).
pub static OPERATOR: Operator = Operator::new("Identity").lower(lower);

fn lower(node: &OnnxNode, _: &mut Builder) -> Result<Option<Outputs>, OpError> {
    one(node.input(0)?)
}
