//! What is known of every value of a graph, from what is known of its inputs.

use crate::{Fact, Graph, GraphError};
use smallvec::SmallVec;

/// Facts of every value, in the order of [`Graph::values`]. Constants stay what they are; where the rules
/// tell nothing of a datatype, what the graph says stays.
pub fn infer_values(graph: &Graph, inputs: &[Fact]) -> Result<Vec<Fact>, GraphError> {
    let mut facts: Vec<Fact> = graph
        .values
        .iter()
        .map(|value| match value.fact.constant {
            Some(_) => value.fact.clone(),
            None => Fact { kind: value.fact.kind, ..Fact::of_dtype(value.fact.dtype) },
        })
        .collect();
    for (&value, fact) in graph.inputs.iter().zip(inputs) {
        let dtype = fact.dtype.or(facts[value.index()].dtype);
        facts[value.index()] = Fact { dtype, ..fact.clone() };
    }
    for node in &graph.nodes {
        let inferred = {
            let known: SmallVec<[Option<&Fact>; 4]> =
                node.inputs.iter().map(|input| input.map(|value| &facts[value.index()])).collect();
            node.op.infer(&known)
        };
        let inferred =
            inferred.map_err(|source| GraphError { node: node.name.clone(), operator: node.origin.clone(), source })?;
        for (mut fact, &output) in inferred.into_iter().zip(&node.outputs) {
            let info = &graph.values[output.index()];
            fact.dtype = fact.dtype.or(info.fact.dtype);
            fact.name_unknowns(&info.name);
            facts[output.index()] = fact;
        }
    }
    Ok(facts)
}
