//! What a model needs at least, before it takes it.

use std::collections::BTreeMap;

use halimede_compute::{Model, Precision};
use halimede_graph::Graph;
use halimede_tensor::DType;

use super::shapes::Descs;

/// Bytes of a graph's weights, each once, as they are multiplied in a precision.
pub(super) fn weights(graph: &Graph, precision: Precision) -> u64 {
    let mut weights: BTreeMap<usize, u64> = BTreeMap::new();
    for value in graph.nodes.iter().flat_map(|node| node.inputs.iter().flatten()) {
        let Some(constant) = graph.constant(*value) else { continue };
        let bits = match (precision, constant.dtype()) {
            // Strings are no weights.
            (_, DType::String) => continue,
            // Vectors are added, not multiplied, and stay what they are.
            (Precision::Balanced, DType::F32) if constant.rank() > 1 => 16,
            (Precision::Fast, DType::F32) if constant.rank() > 1 => 8,
            (_, dtype) => dtype.bits(),
        };
        let bytes = (constant.len() as u64).saturating_mul(bits as u64).div_ceil(8);
        weights.insert(value.index(), bytes);
    }
    weights.into_values().fold(0, u64::saturating_add)
}

/// Bytes of a run in the largest of the shapes that a configuration names, as far as they are known.
pub(super) fn of_a_run(model: &Model, shapes: &[Descs]) -> u64 {
    let bytes = shapes.iter().filter_map(|descs| model.run_bytes(descs));
    bytes.max().and_then(|bytes| u64::try_from(bytes).ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use halimede_graph::onnx::import;

    use super::*;

    #[test]
    fn weights_count_once_in_the_precision_that_they_are_multiplied_in() {
        let path =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/repository/digits_classifier/1/model.onnx");
        let graph = import::load(&path).unwrap().graph;
        let [exact, balanced, fast] =
            [Precision::Exact, Precision::Balanced, Precision::Fast].map(|precision| weights(&graph, precision));
        let stored = std::fs::metadata(&path).unwrap().len();
        // The file is weights and some names.
        assert!(exact <= stored && exact > stored / 2, "{exact} of {stored}");
        assert!(balanced < exact && 2 * balanced >= exact, "{balanced} of {exact}");
        assert!(fast < balanced && 4 * fast >= exact, "{fast} of {exact}");
    }
}
