//! Control flow: operations that run graphs.

mod infer;
mod run;

pub(super) use infer::infer;
pub(crate) use infer::weaken;
pub use run::run_control;

use super::Op;
use crate::Graph;
use std::sync::Arc;

/// Runs one of two graphs (ONNX If). Inputs: a Bool condition, then what the branches take from
/// outside; each branch's own inputs are all of those, in that order.
#[derive(Debug, Clone)]
pub struct If {
    /// Runs where the condition is true.
    pub then_branch: Arc<Graph>,
    /// Runs where it is false.
    pub else_branch: Arc<Graph>,
}

/// Runs a graph again and again (ONNX Loop). Inputs: trip count?, condition?, the carried values, then
/// what the body takes from outside. The body's inputs: iteration number, condition, carried values,
/// outside values; its outputs: condition, carried values, scan outputs.
#[derive(Debug, Clone)]
pub struct Loop {
    /// The body.
    pub body: Arc<Graph>,
    /// Number of carried values.
    pub carried: usize,
}

/// Runs a graph over the slices of inputs (ONNX Scan, opset 9 on). Inputs: state values, scan inputs,
/// then what the body takes from outside.
#[derive(Debug, Clone)]
pub struct Scan {
    /// The body: state values, slices, outside values to state values, output slices.
    pub body: Arc<Graph>,
    /// Number of state values.
    pub states: usize,
    /// Per scan input its axis and whether it runs from the end.
    pub inputs: Vec<(i64, bool)>,
    /// Per scan output its axis and whether it is built from the end.
    pub outputs: Vec<(i64, bool)>,
}

impl Op {
    /// The bodies of control flow, in a fixed order; none for other operations.
    pub fn bodies(&self) -> Vec<&Arc<Graph>> {
        match self {
            Op::If(op) => vec![&op.then_branch, &op.else_branch],
            Op::Loop(op) => vec![&op.body],
            Op::Scan(op) => vec![&op.body],
            _ => Vec::new(),
        }
    }

    /// The same, to change them.
    pub fn bodies_mut(&mut self) -> Vec<&mut Arc<Graph>> {
        match self {
            Op::If(op) => vec![&mut op.then_branch, &mut op.else_branch],
            Op::Loop(op) => vec![&mut op.body],
            Op::Scan(op) => vec![&mut op.body],
            _ => Vec::new(),
        }
    }

    /// The position of the first input that bodies take from outside, and of the body's input that it is.
    pub fn first_outside(&self) -> Option<(usize, usize)> {
        match self {
            Op::If(_) => Some((1, 0)),
            Op::Loop(op) => Some((2 + op.carried, 2 + op.carried)),
            Op::Scan(op) => Some((op.states + op.inputs.len(), op.states + op.inputs.len())),
            _ => None,
        }
    }
}
