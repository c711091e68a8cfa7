//! Names within the graph, function or body that is being read.

use crate::onnx::Attributes;
use crate::{Fact, Graph, ValueId};
use indexmap::IndexMap;
use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;

/// ONNX's own domain has two names; here it is the empty text.
pub(super) fn domain(domain: &str) -> &str {
    if domain == "ai.onnx" { "" } else { domain }
}

/// A graph that is being written, with what it takes from the graph around it.
#[derive(Default)]
pub(super) struct Frame {
    pub graph: Graph,
    /// Values of the graph around with the inputs that stand for them here, in order of appearance.
    pub captured: IndexMap<ValueId, ValueId>,
}

/// The names of one graph or function. A function has a scope of its own in its caller's graph.
pub(super) struct Scope {
    /// Position of the graph that its values lie in.
    pub frame: usize,
    /// The scope whose names are visible too: that around a body; none for a function.
    pub around: Option<usize>,
    /// Names; `None` for a function's input that the call leaves out.
    pub names: HashMap<String, Option<ValueId>>,
    /// The version of each domain's operators.
    pub opsets: Rc<BTreeMap<String, i64>>,
    /// The attributes of a function's call, which its nodes may refer to.
    pub attributes: Rc<Attributes>,
    /// Which function call this is inside of: a position in the reader's list, counted from 1.
    pub call: usize,
    /// Declared types of values in between.
    pub declared: HashMap<String, Fact>,
}

/// Every open scope and graph, the innermost last.
#[derive(Default)]
pub(super) struct Scopes {
    pub frames: Vec<Frame>,
    pub scopes: Vec<Scope>,
}

impl Scopes {
    pub fn top(&mut self) -> &mut Scope {
        self.scopes.last_mut().expect("a scope is open while nodes are read")
    }

    pub fn graph(&mut self) -> &mut Graph {
        let frame = self.top().frame;
        &mut self.frames[frame].graph
    }

    /// The value of a name; `Some(None)` for one that is known to be missing.
    pub fn resolve(&mut self, name: &str) -> Option<Option<ValueId>> {
        self.resolve_from(self.scopes.len() - 1, name)
    }

    fn resolve_from(&mut self, scope: usize, name: &str) -> Option<Option<ValueId>> {
        if let Some(&value) = self.scopes[scope].names.get(name) {
            return Some(value);
        }
        let around = self.scopes[scope].around?;
        let outer = self.resolve_from(around, name)?;
        let (inner_frame, outer_frame) = (self.scopes[scope].frame, self.scopes[around].frame);
        let value = outer.map(|outer| self.capture(outer, outer_frame, inner_frame));
        self.scopes[scope].names.insert(name.to_owned(), value);
        Some(value)
    }

    /// The value of the inner graph that stands for one of the graph around it.
    fn capture(&mut self, outer: ValueId, outer_frame: usize, inner_frame: usize) -> ValueId {
        if let Some(&value) = self.frames[inner_frame].captured.get(&outer) {
            return value;
        }
        let info = self.frames[outer_frame].graph.values[outer.index()].clone();
        let constant = info.fact.constant.is_some();
        let frame = &mut self.frames[inner_frame];
        let value = frame.graph.add_value(info.name, info.fact);
        // A constant needs no way in: both graphs share its bytes.
        if !constant {
            frame.captured.insert(outer, value);
        }
        value
    }
}
