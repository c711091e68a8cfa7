use crate::onnx::{OnnxNode, Operator, Outputs};
use crate::{Builder, OpError};

/// Scores as maps from labels (ai.onnx.ml ZipMap, opset 1): refused, since no protocol that this engine
/// serves can carry a map.
pub static OPERATOR: Operator = Operator::in_domain("ai.onnx.ml", "ZipMap").lower(lower);

fn lower(node: &OnnxNode, _: &mut Builder) -> Result<Option<Outputs>, OpError> {
    let output = node.outputs.first().and_then(Option::as_deref).unwrap_or(&node.name);
    // The first sentence is Triton's, where its ONNX Runtime backend meets such a model.
    Err(OpError::unsupported(format!(
        "Unsupported ONNX Type 'ONNX_TYPE_SEQUENCE' for I/O '{output}', expected 'ONNX_TYPE_TENSOR'. ZipMap gives a \
         sequence of maps, which no protocol carries: export the model without it (skl2onnx: options={{'zipmap': False}})"
    )))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Graph;
    use crate::onnx::Attributes;

    #[test]
    fn the_refusal_names_the_output_and_the_way_out() {
        let mut graph = Graph::default();
        let node = OnnxNode {
            name: "ZipMap".into(),
            opset: 1,
            inputs: vec![],
            outputs: vec![Some("output_probability".into())],
            attributes: Attributes::default(),
        };
        let error = lower(&node, &mut Builder::new(&mut graph)).unwrap_err().to_string();
        assert!(error.contains("'ONNX_TYPE_SEQUENCE' for I/O 'output_probability'"), "{error}");
        assert!(error.contains("'zipmap': False"), "{error}");
    }
}
