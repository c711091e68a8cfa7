//! How many nodes a model comes to, counted before any function is written out: functions that call each other
//! twice double with every level, and a refusal after half a million nodes is late.

use super::scope::domain;
use crate::onnx::ops::find;
use crate::onnx::proto::{FunctionProto, NodeProto};
use std::collections::HashMap;

/// The functions of a model by domain, name and overload.
pub(super) type Functions<'m> = HashMap<(&'m str, &'m str, &'m str), &'m FunctionProto>;

/// The nodes that `nodes` come to with their bodies and the functions that they call. Calls beyond `calls_max` in
/// a row count as one node: who writes them out refuses them.
pub(super) fn count<'m>(nodes: &'m [NodeProto], functions: &Functions<'m>, calls_max: usize) -> usize {
    Count { functions, known: HashMap::new() }.of(nodes, calls_max)
}

struct Count<'f, 'm> {
    functions: &'f Functions<'m>,
    /// What a function comes to, by how many calls in a row it may still make.
    known: HashMap<(*const FunctionProto, usize), usize>,
}

impl<'m> Count<'_, 'm> {
    fn of(&mut self, nodes: &'m [NodeProto], calls_left: usize) -> usize {
        nodes.iter().fold(0, |sum: usize, node| sum.saturating_add(self.node(node, calls_left)))
    }

    fn node(&mut self, node: &'m NodeProto, calls_left: usize) -> usize {
        let bodies = node.attribute.iter().flat_map(|attribute| attribute.g.iter().chain(&attribute.graphs));
        let own = bodies.fold(1, |sum: usize, body| sum.saturating_add(self.of(&body.node, calls_left)));
        let domain = domain(node.domain());
        let called = match find(domain, node.op_type()) {
            Some(_) => None,
            None => self.functions.get(&(domain, node.op_type(), node.overload())).copied(),
        };
        own.saturating_add(called.map_or(0, |function| self.function(function, calls_left)))
    }

    fn function(&mut self, function: &'m FunctionProto, calls_left: usize) -> usize {
        let Some(calls_left) = calls_left.checked_sub(1) else { return 0 };
        let key = (std::ptr::from_ref(function), calls_left);
        if let Some(&known) = self.known.get(&key) {
            return known;
        }
        let count = self.of(&function.node, calls_left);
        self.known.insert(key, count);
        count
    }
}
