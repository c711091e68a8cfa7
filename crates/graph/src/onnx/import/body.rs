//! Bodies of control flow, made closed.

use super::Reason;
use super::graph::{Reader, without_value};
use super::scope::{Frame, Scope};
use super::types::fact;
use crate::onnx::proto::{GraphProto, NodeProto};
use crate::onnx::{Attribute, Attributes, Body};
use crate::ops::weaken;
use crate::{Dim, Dims, Fact, Kind, ValueId};
use halimede_tensor::DType;
use indexmap::IndexSet;
use std::collections::HashMap;
use std::sync::Arc;

/// From this depth on a body is read once, with nothing assumed of its carried shapes: reading each
/// level a few times over would multiply.
const CAREFUL_DEPTH: usize = 3;

/// Bodies within bodies. Functions can nest them deeper than the file does, and every level takes stack.
const DEPTH_MAX: usize = 64;

/// Rounds in which a body's carried shapes may settle; real ones take two.
const ROUNDS: usize = 3;

/// A graph that a node has as an attribute, with the scope in which its names mean something: that of the
/// node, or for a graph that was handed to a function, that of the call.
#[derive(Clone, Copy)]
pub(super) struct Given<'m> {
    pub name: &'m str,
    pub graph: &'m GraphProto,
    pub scope: usize,
}

/// The inputs of a body that an iteration hands to the next, and the outputs that it hands on.
struct Carried {
    first_input: usize,
    first_output: usize,
    count: usize,
}

impl<'m> Reader<'m> {
    /// Reads the bodies of a node into its attributes; what they take from outside becomes its last inputs.
    pub(super) fn bodies(
        &mut self,
        node: &NodeProto,
        opset: i64,
        mut bodies: Vec<Given<'m>>,
        inputs: &mut Vec<Option<ValueId>>,
        attributes: &mut Attributes,
    ) -> Result<(), Reason> {
        // A condition that is known leaves one branch; the other may be of anything.
        if node.op_type() == "If"
            && let Some(condition) = inputs.first().copied().flatten()
            && let Some(tensor) = self.scopes.graph().constant(condition)
            && let Ok([condition]) = tensor.slice::<u8>()
        {
            let taken = if *condition != 0 { "then_branch" } else { "else_branch" };
            bodies.retain(|body| body.name == taken);
        }
        let mut read = Vec::with_capacity(bodies.len());
        for body in bodies {
            let (given, carried) = self.given(node.op_type(), opset, body.graph, inputs, attributes);
            read.push((body.name, self.settled(body, given, carried)?));
        }
        let captured: IndexSet<ValueId> = read.iter().flat_map(|(_, frame)| frame.captured.keys().copied()).collect();
        for (name, mut frame) in read {
            for outer in &captured {
                let inner = match frame.captured.get(outer) {
                    Some(&inner) => inner,
                    None => {
                        let info = self.scopes.graph().values[outer.index()].clone();
                        frame.graph.add_value(info.name, info.fact)
                    }
                };
                frame.graph.inputs.push(inner);
            }
            let body = Body { graph: Arc::new(frame.graph), captured: captured.len() };
            attributes.0.insert(name.to_owned(), Attribute::Graph(body));
        }
        // What comes from outside stands behind all of the node's own inputs, given or not.
        if node.op_type() == "Loop" && inputs.len() < 2 {
            inputs.resize(2, None);
        }
        inputs.extend(captured.into_iter().map(Some));
        Ok(())
    }

    /// What is known of a body's own inputs from what its node is given.
    fn given(
        &mut self,
        operator: &str,
        opset: i64,
        body: &GraphProto,
        inputs: &[Option<ValueId>],
        attributes: &Attributes,
    ) -> (Vec<Fact>, Carried) {
        let graph = self.scopes.graph();
        let facts: Vec<Fact> =
            inputs.iter().map(|input| input.map_or(Fact::default(), |v| without_value(graph.fact(v)))).collect();
        let none = Carried { first_input: 0, first_output: 0, count: 0 };
        match operator {
            "Loop" => {
                let mut given = vec![Fact::tensor(DType::I64, []), Fact::tensor(DType::Bool, [])];
                given.extend(facts.iter().skip(2).cloned());
                (given, Carried { first_input: 2, first_output: 1, count: facts.len().saturating_sub(2) })
            }
            "Scan" if opset >= 9 => {
                let scanned = attributes.int_or("num_scan_inputs", 1).unwrap_or(1).clamp(0, facts.len() as i64);
                let states = facts.len() - scanned as usize;
                let axes = attributes.ints("scan_input_axes").ok().flatten().unwrap_or_default();
                let slices = facts[states..].iter().enumerate().map(|(i, fact)| {
                    let axis = axes.get(i).copied().unwrap_or(0);
                    Fact { shape: without_axis(fact.shape.as_ref(), axis), ..fact.clone() }
                });
                let given = facts[..states].iter().cloned().chain(slices).collect();
                (given, Carried { first_input: 0, first_output: 0, count: states })
            }
            "SequenceMap" => {
                let element = |fact: &Fact| match fact.kind {
                    Kind::Sequence => Fact::of_dtype(fact.dtype),
                    _ => fact.clone(),
                };
                (facts.iter().map(element).collect(), none)
            }
            _ => (vec![Fact::default(); body.input.len()], none),
        }
    }

    /// Reads a body with as much known of its carried values as every iteration leaves true.
    fn settled(&mut self, body: Given<'m>, mut given: Vec<Fact>, carried: Carried) -> Result<Frame, Reason> {
        let name = |index: usize| body.graph.input.get(index).map_or("", |input| input.name());
        if self.scopes.frames.len() > CAREFUL_DEPTH {
            for index in 0..carried.count {
                let at = carried.first_input + index;
                given[at].shape = given[at].shape.take().map(|shape| unknown_dims(name(at), shape.len()));
            }
        }
        // Each round finds sizes that do not last. What is not settled after a few rounds is given up whole.
        for round in 0.. {
            let frame = self.body(body, &given)?;
            let mut changed = false;
            for index in 0..carried.count {
                let (at, out) = (carried.first_input + index, carried.first_output + index);
                if let (Some(&next), Some(fact)) = (frame.graph.outputs.get(out), given.get_mut(at)) {
                    changed |= weaken(fact, frame.graph.fact(next), name(at));
                }
            }
            if !changed {
                return Ok(frame);
            }
            if round >= ROUNDS {
                given[carried.first_input..].iter_mut().take(carried.count).for_each(|fact| fact.shape = None);
            }
        }
        unreachable!("once no shape is known, nothing changes any more")
    }

    /// Reads a body once. Its graph's inputs are its own; what it takes from outside stands apart.
    fn body(&mut self, Given { graph: proto, scope: around, .. }: Given<'m>, given: &[Fact]) -> Result<Frame, Reason> {
        let scope = &self.scopes.scopes[around];
        let (opsets, attributes, call) = (scope.opsets.clone(), scope.attributes.clone(), scope.call);
        if scope.frame != self.scopes.scopes[self.scopes.scopes.len() - 1].frame {
            let message = "a graph that is handed to a function is used inside another graph of the function; write \
                           the function out instead of calling it";
            return Err(Reason::model(message.to_owned()));
        }
        let frame = self.scopes.frames.len();
        if frame > DEPTH_MAX {
            return Err(Reason::model(format!("bodies of control flow lie more than {DEPTH_MAX} deep in each other")));
        }
        self.scopes.frames.push(Frame::default());
        self.scopes.scopes.push(Scope {
            frame,
            around: Some(around),
            names: HashMap::new(),
            opsets,
            attributes,
            call,
            declared: HashMap::new(),
        });
        self.scopes.graph().name = proto.name().to_owned();
        for (index, info) in proto.input.iter().enumerate() {
            let name = info.name();
            let declared = fact(name, info.r#type.as_ref())?;
            let given = given.get(index).cloned().unwrap_or_default();
            let unknown = given.dtype.is_none() && given.shape.is_none();
            let fact = Fact {
                kind: if unknown { declared.kind } else { given.kind },
                dtype: given.dtype.or(declared.dtype),
                // Exporters write down the sizes of one example here; only the rank is to be trusted.
                shape: given.shape.or(declared.shape.map(|shape| unknown_dims(name, shape.len()))),
                ..Fact::default()
            };
            let value = self.scopes.graph().add_value(name, fact);
            self.define(name, Some(value))?;
            self.scopes.graph().inputs.push(value);
        }
        let stored = self.stored(proto)?;
        self.constants(stored)?;
        self.declare(&proto.value_info)?;
        self.nodes(&proto.node)?;
        for info in &proto.output {
            let value = self.output(info.name())?;
            self.scopes.graph().outputs.push(value);
        }
        self.scopes.scopes.pop();
        Ok(self.scopes.frames.pop().expect("pushed above"))
    }
}

fn unknown_dims(name: &str, rank: usize) -> Dims {
    (0..rank).map(|axis| Dim::symbol(&format!("{name}.{axis}"))).collect()
}

fn without_axis(shape: Option<&Dims>, axis: i64) -> Option<Dims> {
    let mut shape = shape?.clone();
    let axis = if axis < 0 { axis.checked_add(shape.len() as i64)? } else { axis };
    let axis = usize::try_from(axis).ok().filter(|&axis| axis < shape.len())?;
    shape.remove(axis);
    Some(shape)
}
