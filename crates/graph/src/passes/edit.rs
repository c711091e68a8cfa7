//! What passes share: who reads a value, putting one value in place of another.

use super::{PassReport, Refusal, Rewrite};
use crate::{Graph, Node, Op, ValueId};
use smallvec::SmallVec;

/// Counts of readers: every use by a node, and by the graph's outputs.
pub(super) fn readers(graph: &Graph) -> Vec<usize> {
    let mut readers = vec![0; graph.values.len()];
    for value in graph.nodes.iter().flat_map(|node| node.inputs.iter().flatten()).chain(&graph.outputs) {
        readers[value.index()] += 1;
    }
    readers
}

/// Lets every node read `to` instead of `from`. An output of the graph has its own name and place, so
/// the caller leaves those alone.
pub(super) fn replace(graph: &mut Graph, from: ValueId, to: ValueId) {
    for input in graph.nodes.iter_mut().flat_map(|node| node.inputs.iter_mut().flatten()) {
        if *input == from {
            *input = to;
        }
    }
}

/// Removes the nodes for which `gone` says so.
pub(super) fn remove(graph: &mut Graph, gone: &[bool]) {
    let mut index = 0;
    graph.nodes.retain(|_| {
        index += 1;
        !gone[index - 1]
    });
}

/// Whether a value is an output of the graph.
pub(super) fn is_output(graph: &Graph, value: ValueId) -> bool {
    graph.outputs.contains(&value)
}

/// The name by which a person finds a node.
pub(super) fn name(graph: &Graph, node: &Node) -> String {
    match node.name.is_empty() {
        true => node.outputs.first().map_or_else(String::new, |output| graph.values[output.index()].name.clone()),
        false => node.name.clone(),
    }
}

/// Notes why a node is left alone.
pub(super) fn refuse(graph: &Graph, node: &Node, reason: impl Into<String>, report: &mut PassReport) {
    report.refusals.push(Refusal { node: name(graph, node), reason: reason.into() });
}

/// Counts a rewrite and notes what it made of a node.
pub(super) fn done(graph: &Graph, node: &Node, what: impl Into<String>, report: &mut PassReport) {
    report.changed += 1;
    report.rewrites.push(Rewrite { node: name(graph, node), what: what.into() });
}

/// Why a node is left alone.
pub(super) type Reason = &'static str;

/// An operation and its inputs, to stand where another one did.
pub(super) type Made = (Op, SmallVec<[Option<ValueId>; 4]>);

/// Gives each node what `make` makes of it by its place and the producers of the graph's values, which stay where they
/// are. `kept` stands before the reasons why others are left alone, `what` is said of those that changed.
pub(super) fn rework(
    graph: &mut Graph,
    report: &mut PassReport,
    (kept, what): (&str, &str),
    make: impl Fn(&mut Graph, usize, &[Option<usize>]) -> Option<Result<Made, Reason>>,
) {
    let producers = graph.producers();
    for index in 0..graph.nodes.len() {
        match make(graph, index, &producers) {
            None => {}
            Some(Err(reason)) => refuse(graph, &graph.nodes[index], format!("{kept}: {reason}"), report),
            Some(Ok(made)) => {
                let node = &mut graph.nodes[index];
                (node.op, node.inputs) = made;
                done(graph, &graph.nodes[index], what, report);
            }
        }
    }
}
