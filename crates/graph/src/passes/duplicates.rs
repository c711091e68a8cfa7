use super::edit::{is_output, remove, replace};
use super::{Pass, PassOptions, PassReport};
use crate::{Graph, ValueId};
use halimede_tensor::{DType, Shape};
use std::collections::HashMap;

/// Lets equal operations on equal inputs run once, and equal small constants be one.
pub(super) const PASS: Pass = Pass { name: "common subexpressions", run };

/// Larger constants are not compared byte by byte.
const MAX_CONSTANT_BYTES: usize = 4096;

fn run(graph: &mut Graph, _: &PassOptions, report: &mut PassReport) {
    let mut constants: HashMap<(DType, Shape, Vec<u8>), ValueId> = HashMap::new();
    for index in 0..graph.values.len() {
        let id = ValueId(index as u32);
        let Some(tensor) = graph.constant(id) else { continue };
        let Some(bytes) = tensor.bytes().ok().filter(|bytes| bytes.len() <= MAX_CONSTANT_BYTES) else { continue };
        let first = *constants.entry((tensor.dtype(), tensor.shape().into(), bytes.to_vec())).or_insert(id);
        if first != id && !is_output(graph, id) {
            replace(graph, id, first);
        }
    }
    let mut known: HashMap<(String, Vec<Option<ValueId>>), usize> = HashMap::new();
    let mut gone = vec![false; graph.nodes.len()];
    for index in 0..graph.nodes.len() {
        let node = &graph.nodes[index];
        if node.op.tensor_op().is_none() {
            continue;
        }
        let key = (format!("{:?}", node.op), node.inputs.to_vec());
        let first = *known.entry(key).or_insert(index);
        if first == index || node.outputs.iter().any(|&output| is_output(graph, output)) {
            continue;
        }
        let (twice, once) = (node.outputs.clone(), graph.nodes[first].outputs.clone());
        twice.into_iter().zip(once).for_each(|(twice, once)| replace(graph, twice, once));
        gone[index] = true;
        report.changed += 1;
    }
    remove(graph, &gone);
}
