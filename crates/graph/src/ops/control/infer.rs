//! What is known of the outputs of control flow: what its bodies say, and what holds for every iteration.

use super::super::{Facts, Op};
use super::{If, Loop, Scan};
use crate::infer::infer_values;
use crate::{Dim, Dims, Fact, Graph, Kind, OpError};
use halimede_tensor::DType;
use std::collections::HashSet;

/// Rounds in which carried shapes may settle before they are given up.
const ROUNDS: usize = 3;

pub(crate) fn infer(op: &Op, inputs: &[Option<&Fact>]) -> Result<Facts, OpError> {
    let visible = Visible::of(inputs);
    let mut facts = match op {
        Op::If(op) => infer_if(op, inputs)?,
        Op::Loop(op) => infer_loop(op, inputs)?,
        Op::Scan(op) => infer_scan(op, inputs)?,
        other => return Err(OpError::unsupported(other.name())),
    };
    facts.iter_mut().for_each(|fact| visible.restrict(fact));
    Ok(facts)
}

fn infer_if(op: &If, inputs: &[Option<&Fact>]) -> Result<Facts, OpError> {
    let outside: Vec<Fact> = inputs.iter().skip(1).map(|fact| fact.cloned().unwrap_or_default()).collect();
    // A condition that is known leaves one branch; the other may be wrong for these shapes.
    if let Some(&[condition]) = inputs.first().copied().flatten().and_then(Fact::ints).as_deref() {
        return Ok(outputs(if condition != 0 { &op.then_branch } else { &op.else_branch }, &outside)?.into());
    }
    let (a, b) = (outputs(&op.then_branch, &outside)?, outputs(&op.else_branch, &outside)?);
    if a.len() != b.len() {
        return Err(OpError::invalid(format!("the branches give {} and {} outputs", a.len(), b.len())));
    }
    Ok(a.iter().zip(&b).map(|(a, b)| common(a, b)).collect())
}

fn infer_loop(op: &Loop, inputs: &[Option<&Fact>]) -> Result<Facts, OpError> {
    let given = |index: usize| inputs.get(index).copied().flatten().map(kept).unwrap_or_default();
    let mut facts = vec![Fact::tensor(DType::I64, []), Fact::tensor(DType::Bool, [])];
    facts.extend((2..inputs.len()).map(given));
    let last = settle(&op.body, &mut facts, 2, 1, op.carried)?;
    let carried = (0..op.carried).map(|index| common(&given(2 + index), &last[1 + index]));
    // The trip count may be known, but the condition can end the loop before.
    let scanned = last.iter().skip(1 + op.carried).map(|fact| stacked(fact, 0, &Dim::unknown()));
    Ok(carried.chain(scanned).collect())
}

fn infer_scan(op: &Scan, inputs: &[Option<&Fact>]) -> Result<Facts, OpError> {
    let given = |index: usize| inputs.get(index).copied().flatten().map(kept).unwrap_or_default();
    let mut facts: Vec<Fact> = (0..inputs.len()).map(given).collect();
    let mut length = Dim::unknown();
    for (fact, (axis, _)) in facts[op.states..].iter_mut().zip(&op.inputs) {
        let Some(shape) = &mut fact.shape else { continue };
        let dim = shape.remove(resolve(*axis, shape.len())?);
        if length.known().is_none() {
            length = dim;
        }
    }
    let last = settle(&op.body, &mut facts, 0, 0, op.states)?;
    let states = (0..op.states).map(|index| common(&given(index), &last[index]));
    let scanned = last[op.states..].iter().zip(&op.outputs).map(|(fact, (axis, _))| stacked(fact, *axis, &length));
    Ok(states.chain(scanned).collect())
}

/// What is known of a body's outputs in every iteration. `facts` are those of its inputs and lose what
/// does not last.
fn settle(
    body: &Graph,
    facts: &mut [Fact],
    first_input: usize,
    first_output: usize,
    count: usize,
) -> Result<Vec<Fact>, OpError> {
    if body.outputs.len() < first_output + count || facts.len() < first_input + count {
        return Err(OpError::invalid("the body hands on other values than it is given"));
    }
    for round in 0.. {
        let last = outputs(body, facts)?;
        let mut changed = false;
        for index in 0..count {
            let at = first_input + index;
            let name = &body.values[body.inputs[at].index()].name;
            changed |= weaken(&mut facts[at], &last[first_output + index], name);
        }
        if !changed {
            return Ok(last);
        }
        if round >= ROUNDS {
            facts[first_input..][..count].iter_mut().for_each(|fact| fact.shape = None);
        }
    }
    unreachable!("once no shape is known, nothing changes any more")
}

fn outputs(body: &Graph, inputs: &[Fact]) -> Result<Vec<Fact>, OpError> {
    if body.inputs.len() != inputs.len() {
        let (takes, given) = (body.inputs.len(), inputs.len());
        return Err(OpError::invalid(format!("the body takes {takes} values and is given {given}")));
    }
    let facts = infer_values(body, inputs).map_err(|error| OpError::invalid(format!("in the body: {error}")))?;
    Ok(body.outputs.iter().map(|output| facts[output.index()].clone()).collect())
}

/// Takes from `fact` what does not hold of `next` as well; whether anything went. A size that differs
/// becomes a symbol named after the value `name` and the axis: another number in each iteration.
pub(crate) fn weaken(fact: &mut Fact, next: &Fact, name: &str) -> bool {
    if fact.kind == Kind::Tensor && next.kind != Kind::Tensor {
        *fact = Fact { kind: next.kind, dtype: fact.dtype, ..Fact::default() };
        return true;
    }
    let Some(shape) = &mut fact.shape else { return false };
    let Some(other) = next.shape.as_ref().filter(|other| other.len() == shape.len()) else {
        fact.shape = None;
        return true;
    };
    let mut changed = false;
    for (axis, (dim, other)) in shape.iter_mut().zip(other).enumerate() {
        let own = Dim::symbol(&format!("{name}.{axis}"));
        if dim != other && *dim != own {
            *dim = own;
            changed = true;
        }
    }
    changed
}

/// What holds of either value.
fn common(a: &Fact, b: &Fact) -> Fact {
    let shape = match (&a.shape, &b.shape) {
        (Some(a), Some(b)) if a.len() == b.len() => {
            let common = |(a, b): (&Dim, &Dim)| if a == b { a.clone() } else { Dim::unknown() };
            Some(a.iter().zip(b).map(common).collect::<Dims>())
        }
        _ => None,
    };
    let kind = if a.kind == Kind::Tensor { b.kind } else { a.kind };
    Fact { kind, dtype: a.dtype.or(b.dtype), shape: shape.filter(|_| kind == Kind::Tensor), ..Fact::default() }
}

/// A fact without the value itself.
fn kept(fact: &Fact) -> Fact {
    Fact { kind: fact.kind, dtype: fact.dtype, shape: fact.shape.clone(), ..Fact::default() }
}

/// Slices joined along a new axis.
fn stacked(slice: &Fact, axis: i64, length: &Dim) -> Fact {
    let shape = slice.shape.as_ref().and_then(|shape| {
        let mut shape = shape.clone();
        shape.insert(resolve(axis, shape.len() + 1).ok()?, length.clone());
        Some(shape)
    });
    Fact { dtype: slice.dtype, shape, ..Fact::default() }
}

pub(super) fn resolve(axis: i64, rank: usize) -> Result<usize, OpError> {
    let resolved = if axis < 0 { axis.saturating_add(rank as i64) } else { axis };
    usize::try_from(resolved)
        .ok()
        .filter(|&axis| axis < rank)
        .ok_or_else(|| OpError::invalid(format!("axis {axis} lies outside rank {rank}")))
}

/// The symbols that mean something outside the bodies.
struct Visible(HashSet<String>);

impl Visible {
    fn of(inputs: &[Option<&Fact>]) -> Visible {
        let mut symbols = HashSet::new();
        for dim in inputs.iter().flatten().filter_map(|fact| fact.shape.as_ref()).flatten() {
            dim.symbols(&mut |name| {
                symbols.insert(name.to_owned());
            });
        }
        Visible(symbols)
    }

    /// Makes sizes unknown that speak of symbols of the body.
    fn restrict(&self, fact: &mut Fact) {
        for dim in fact.shape.iter_mut().flatten() {
            let mut visible = true;
            dim.symbols(&mut |name| visible &= self.0.contains(name));
            if !visible {
                *dim = Dim::unknown();
            }
        }
    }
}
