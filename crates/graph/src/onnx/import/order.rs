//! Nodes in an order in which every value is written before it is read.

use super::Reason;
use crate::onnx::proto::{AttributeProto, GraphProto, NodeProto};
use std::collections::{HashMap, HashSet};

/// Positions of `nodes` in running order: the model's own order where that is right.
pub(super) fn running_order(nodes: &[NodeProto]) -> Result<Vec<usize>, Reason> {
    let mut writers: HashMap<&str, usize> = HashMap::new();
    for (index, node) in nodes.iter().enumerate() {
        for name in node.output.iter().filter(|name| !name.is_empty()) {
            if writers.insert(name, index).is_some() {
                return Err(Reason::model(format!(
                    "value '{name}' is written twice (the second time by {}); every value is written once in ONNX",
                    title(node)
                )));
            }
        }
    }
    let needs: Vec<Vec<usize>> = nodes
        .iter()
        .map(|node| {
            let mut needs: Vec<usize> = reads(node).into_iter().filter_map(|name| writers.get(name).copied()).collect();
            needs.sort_unstable();
            needs
        })
        .collect();
    let mut visit = Visit { nodes, needs: &needs, state: vec![State::New; nodes.len()], order: Vec::new() };
    for index in 0..nodes.len() {
        visit.from(index)?;
    }
    Ok(visit.order)
}

/// How a message names a node.
pub(super) fn title(node: &NodeProto) -> String {
    format!("node '{}' ({})", name(node), node.op_type())
}

/// The node's name, or its first output's where it has none.
pub(super) fn name(node: &NodeProto) -> &str {
    match node.name() {
        "" => node.output.iter().find(|name| !name.is_empty()).map_or("", String::as_str),
        name => name,
    }
}

/// Names that a node reads, those that its bodies take from outside included.
fn reads(node: &NodeProto) -> HashSet<&str> {
    let mut names: HashSet<&str> = node.input.iter().map(String::as_str).filter(|name| !name.is_empty()).collect();
    for attribute in &node.attribute {
        for body in bodies(attribute) {
            names.extend(free_names(body));
        }
    }
    names
}

fn bodies(attribute: &AttributeProto) -> impl Iterator<Item = &GraphProto> {
    attribute.g.iter().chain(&attribute.graphs)
}

/// Names that a body reads and does not write.
fn free_names(graph: &GraphProto) -> HashSet<&str> {
    let mut names: HashSet<&str> = graph.node.iter().flat_map(reads).collect();
    names.extend(graph.output.iter().map(|output| output.name()));
    let written = graph.node.iter().flat_map(|node| &node.output).map(String::as_str);
    let given = graph.input.iter().map(|input| input.name());
    let stored = graph.initializer.iter().map(|tensor| tensor.name());
    for name in written.chain(given).chain(stored) {
        names.remove(name);
    }
    names
}

#[derive(Clone, Copy, PartialEq)]
enum State {
    New,
    Open,
    Done,
}

struct Visit<'a> {
    nodes: &'a [NodeProto],
    needs: &'a [Vec<usize>],
    state: Vec<State>,
    order: Vec<usize>,
}

impl Visit<'_> {
    /// Depth first with a stack of its own: a chain of a million nodes in reverse order is read too.
    fn from(&mut self, start: usize) -> Result<(), Reason> {
        if self.state[start] != State::New {
            return Ok(());
        }
        self.state[start] = State::Open;
        let mut stack = vec![(start, 0)];
        while let Some((node, next)) = stack.pop() {
            let Some(&need) = self.needs[node].get(next) else {
                self.state[node] = State::Done;
                self.order.push(node);
                continue;
            };
            stack.push((node, next + 1));
            match self.state[need] {
                State::Done => {}
                State::New => {
                    self.state[need] = State::Open;
                    stack.push((need, 0));
                }
                State::Open => {
                    let cycle = title(&self.nodes[need]);
                    return Err(Reason::model(format!("the graph is cyclic: {cycle} reads what depends on it")));
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(input: &[&str], output: &[&str]) -> NodeProto {
        NodeProto {
            input: input.iter().map(|s| s.to_string()).collect(),
            output: output.iter().map(|s| s.to_string()).collect(),
            ..NodeProto::default()
        }
    }

    #[test]
    fn order_is_kept_or_made() {
        let right = [node(&["x"], &["a"]), node(&["a"], &["b"]), node(&[""], &[""])];
        assert_eq!(running_order(&right).unwrap(), [0, 1, 2]);
        let reversed: Vec<NodeProto> =
            (0..100_000).rev().map(|i| node(&[&format!("v{i}")], &[&format!("v{}", i + 1)])).collect();
        assert_eq!(running_order(&reversed).unwrap(), (0..100_000).rev().collect::<Vec<_>>());
    }

    #[test]
    fn cycles_and_second_writers_are_refused() {
        let cycle = [node(&["b"], &["a"]), node(&["a"], &["b"])];
        assert!(running_order(&cycle).unwrap_err().to_string().contains("cyclic"));
        let twice = [node(&["x"], &["a"]), node(&["x"], &["a"])];
        assert!(running_order(&twice).unwrap_err().to_string().contains("written twice"));
    }

    #[test]
    fn bodies_order_by_what_they_take_from_outside() {
        let body = GraphProto { node: vec![node(&["late", "own"], &["own"])], ..GraphProto::default() };
        let mut reader = node(&[], &["y"]);
        reader.attribute.push(AttributeProto { g: Some(body), ..AttributeProto::default() });
        assert_eq!(running_order(&[reader, node(&["x"], &["late"])]).unwrap(), [1, 0]);
    }
}
