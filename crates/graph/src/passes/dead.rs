use super::edit::remove;
use super::{Pass, PassOptions, PassReport};
use crate::Graph;

/// Removes operations whose results nobody reads.
pub(super) const PASS: Pass = Pass { name: "dead code", run };

fn run(graph: &mut Graph, _: &PassOptions, report: &mut PassReport) {
    let mut read = vec![false; graph.values.len()];
    for output in &graph.outputs {
        read[output.index()] = true;
    }
    let mut gone = vec![false; graph.nodes.len()];
    for (index, node) in graph.nodes.iter().enumerate().rev() {
        gone[index] = !node.outputs.iter().any(|output| read[output.index()]);
        if !gone[index] {
            node.inputs.iter().flatten().for_each(|input| read[input.index()] = true);
        }
    }
    report.changed = gone.iter().filter(|&&gone| gone).count();
    remove(graph, &gone);
    // Constants that nobody reads any more give their memory back.
    for (index, value) in graph.values.iter_mut().enumerate() {
        if !read[index] && value.fact.constant.take().is_some() {
            report.changed += 1;
        }
    }
}
