use crate::onnx::{OnnxNode, Operator, Outputs};
use crate::{Builder, OpError};

/// Maps as vectors (ai.onnx.ml DictVectorizer, opset 1): refused, since no protocol that this engine
/// serves can carry a map.
pub static OPERATOR: Operator = Operator::in_domain("ai.onnx.ml", "DictVectorizer").lower(lower);

fn lower(_: &OnnxNode, _: &mut Builder) -> Result<Option<Outputs>, OpError> {
    Err(OpError::unsupported("DictVectorizer, whose input is a map; export the model from vectors"))
}
