use crate::onnx::{OnnxNode, Operator, Outputs};
use crate::{Builder, OpError};

/// Scores as maps from labels (ai.onnx.ml ZipMap, opset 1): refused, since no protocol that this engine
/// serves can carry a map.
pub static OPERATOR: Operator = Operator::in_domain("ai.onnx.ml", "ZipMap").lower(lower);

fn lower(_: &OnnxNode, _: &mut Builder) -> Result<Option<Outputs>, OpError> {
    Err(OpError::unsupported(
        "ZipMap, whose output is a sequence of maps; export the model without it (skl2onnx: options={'zipmap': False})",
    ))
}
