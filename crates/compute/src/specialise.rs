//! From the shapes of a request to what is known of every value.

use crate::TensorDesc;
use crate::plan::node_error;
use halimede_graph::{Fact, Graph, GraphError, Kind, Node};
use halimede_tensor::{DType, Tensor};
use smallvec::SmallVec;

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
    for node in &graph.nodes {
        for (fact, &output) in infer(node, &facts)?.into_iter().zip(&node.outputs) {
            let dtype = fact.dtype.or(graph.fact(output).dtype);
            facts[output.index()] = resolve(Fact { dtype, ..fact });
        }
    }
    Ok(facts)
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
