//! From the shapes of a request to what is known of every value.

use crate::TensorDesc;
use crate::memory::expected_bytes;
use crate::plan::node_error;
use halimede_graph::{Fact, Graph, GraphError, Kind, Node, Op, ValueId};
use halimede_tensor::{DType, Tensor, Value};
use smallvec::SmallVec;

/// Bytes of values that follow from shapes alone and are worked out once for all runs of a plan, at most: those of
/// relative positions of 128 tokens, say. A plan keeps those that a step reads, and many plans are kept.
const WORKED_OUT_BYTES: usize = 4 << 20;
/// Of them what one operation makes, at most.
const MADE_BYTES: usize = 1 << 20;

/// Facts with numbers in place of symbols, one per value of the graph.
pub(crate) fn specialise(graph: &Graph, inputs: &[Option<TensorDesc>]) -> Result<Vec<Fact>, GraphError> {
    let mut facts: Vec<Fact> = graph
        .values
        .iter()
        .map(|value| match value.fact.constant {
            Some(_) => value.fact.clone(),
            None => Fact { kind: value.fact.kind, ..Fact::of_dtype(value.fact.dtype) },
        })
        .collect();
    for (&value, desc) in graph.inputs.iter().zip(inputs) {
        if let Some(desc) = desc {
            facts[value.index()] = Fact::tensor(desc.dtype, desc.shape.iter().map(|&size| size.into()));
        }
    }
    let mut budget = WORKED_OUT_BYTES;
    for node in &graph.nodes {
        for (fact, &output) in infer(node, &facts)?.into_iter().zip(&node.outputs) {
            let dtype = fact.dtype.or(graph.fact(output).dtype);
            facts[output.index()] = resolve(Fact { dtype, ..fact });
        }
        work_out(graph, node, &mut facts, &mut budget);
    }
    Ok(facts)
}

/// Works out what follows from shapes alone, though it is no shape: positions that tokens have to each other, masks, rows
/// of a table. `budget` is what there may be of it.
fn work_out(graph: &Graph, node: &Node, facts: &mut [Fact], budget: &mut usize) {
    let is_open = node.outputs.iter().any(|output| facts[output.index()].constant.is_none());
    // What constants of the graph alone make was left as it is when it was compiled.
    let is_of_shapes = |value: &ValueId| graph.constant(*value).is_none();
    if !is_open || !takes_little(&node.op) || !node.inputs.iter().flatten().any(is_of_shapes) {
        return;
    }
    let known = |input: &Option<ValueId>| match input {
        Some(value) => facts[value.index()].constant.clone().map(|it| Some(Value::Tensor(it))),
        None => Some(None),
    };
    let Some(inputs) = node.inputs.iter().map(known).collect::<Option<Vec<_>>>() else { return };
    let expected: Option<SmallVec<[TensorDesc; 1]>> =
        node.outputs.iter().map(|output| planned(&facts[output.index()])).collect();
    let bytes = node.outputs.iter().map(|output| expected_bytes(&facts[output.index()])).fold(0, usize::saturating_add);
    let Some(expected) = expected.filter(|_| bytes <= MADE_BYTES.min(*budget)) else { return };
    // What fails here fails again where it runs, and says so.
    let Ok(made) = node.op.evaluate(&inputs) else { return };
    let is_expected = |(value, desc): (&Value, &TensorDesc)| match value {
        Value::Tensor(tensor) => tensor.dtype() == desc.dtype && *tensor.shape() == *desc.shape,
        _ => false,
    };
    if made.len() < expected.len() || !made.iter().zip(&expected).all(is_expected) {
        return;
    }
    *budget -= bytes;
    for (value, output) in made.into_iter().zip(&node.outputs) {
        if let Value::Tensor(tensor) = value {
            facts[output.index()] = Fact::constant(tensor);
        }
    }
}

/// Whether an operation does no more than a little for each number that it reads or writes, so that its definition may work
/// it out, as slow as that is.
fn takes_little(op: &Op) -> bool {
    matches!(
        op,
        Op::Cast(_)
            | Op::Concat(_)
            | Op::Cumulative(_)
            | Op::Expand(_)
            | Op::Gather(_)
            | Op::GatherElements(_)
            | Op::GatherNd(_)
            | Op::Map(_)
            | Op::Pad(_)
            | Op::Range(_)
            | Op::Reshape(_)
            | Op::ScatterNd(_)
            | Op::Slice(_)
            | Op::Tile(_)
            | Op::Transpose(_)
    )
}

/// Forgets what was known and nobody asks for: what led to something that is known itself.
pub(crate) fn forget(graph: &Graph, facts: &mut [Fact], needed: &[bool]) {
    let mut is_asked_for = vec![false; facts.len()];
    let readers = graph.nodes.iter().zip(needed).filter(|(_, needed)| **needed);
    let read = readers.flat_map(|(node, _)| node.inputs.iter().flatten());
    for value in read.chain(&graph.outputs) {
        is_asked_for[value.index()] = true;
    }
    for (fact, _) in facts.iter_mut().zip(is_asked_for).filter(|(_, is_asked_for)| !is_asked_for) {
        fact.constant = None;
    }
}

/// What is known of a node's outputs. A body may be wrong for shapes with which it never runs, so that of
/// control flow that does not fit nothing is known.
fn infer(node: &Node, facts: &[Fact]) -> Result<SmallVec<[Fact; 1]>, GraphError> {
    let inputs: SmallVec<[Option<&Fact>; 4]> =
        node.inputs.iter().map(|input| input.map(|value| &facts[value.index()])).collect();
    match node.op.infer(&inputs) {
        Err(_) if !node.op.bodies().is_empty() => Ok(SmallVec::new()),
        known => known.map_err(|source| node_error(node, source)),
    }
}

/// A value whose elements are all numbers is a constant.
fn resolve(mut fact: Fact) -> Fact {
    if fact.constant.is_none()
        && let (Some(elements), Some(shape)) = (fact.ints(), fact.known_shape())
    {
        fact.constant = match fact.dtype {
            Some(DType::I64) => Tensor::from_slice(&shape, &elements).ok(),
            Some(DType::I32) => {
                let narrow: Option<Vec<i32>> = elements.iter().map(|&e| e.try_into().ok()).collect();
                narrow.and_then(|narrow| Tensor::from_slice(&shape, &narrow).ok())
            }
            _ => None,
        };
    }
    fact
}

/// The datatype and shape of a tensor that can lie in planned memory.
pub(crate) fn planned(fact: &Fact) -> Option<TensorDesc> {
    let dtype = fact.dtype.filter(|&dtype| dtype != DType::String && fact.kind == Kind::Tensor)?;
    let shape = fact.known_shape()?;
    halimede_tensor::element_count(&shape).ok()?;
    Some(TensorDesc { dtype, shape })
}
