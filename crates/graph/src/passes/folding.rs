use super::edit::{readers, refuse, remove};
use super::{Pass, PassOptions, PassReport};
use crate::{Fact, Graph, Op};
use halimede_tensor::{Tensor, Value};

/// Works out operations on constants, within a budget for what the constants grow by.
pub(super) const PASS: Pass = Pass { name: "constant folding", run };

fn run(graph: &mut Graph, options: &PassOptions, report: &mut PassReport) {
    let readers = readers(graph);
    let mut budget = options.fold_bytes_max;
    let mut gone = vec![false; graph.nodes.len()];
    for index in 0..graph.nodes.len() {
        let node = &graph.nodes[index];
        let pure = match &node.op {
            Op::Call(call) => !call.operator.random && call.operator.evaluate.is_some(),
            op => op.tensor_op().is_some(),
        };
        let inputs: Option<Vec<Option<Value>>> = node
            .inputs
            .iter()
            .map(|input| input.map_or(Some(None), |v| graph.constant(v).map(|t| Some(Value::Tensor(t.clone())))))
            .collect();
        let Some(inputs) = inputs.filter(|inputs| pure && !inputs.is_empty()) else { continue };
        // What only this operation reads is given back.
        let freed: usize = node
            .inputs
            .iter()
            .flatten()
            .filter(|input| readers[input.index()] == 1)
            .filter_map(|input| graph.constant(*input))
            .map(bytes)
            .sum();
        let expected: Option<usize> = node.outputs.iter().map(|&output| expected_bytes(graph.fact(output))).sum();
        if expected.is_some_and(|expected| expected.saturating_sub(freed) > budget) {
            refuse(graph, &graph.nodes[index], "its result is larger than what is left of the byte budget", report);
            continue;
        }
        let Ok(outputs) = node.op.evaluate(&inputs) else {
            refuse(graph, &graph.nodes[index], "it fails on its constant inputs", report);
            continue;
        };
        let tensors: Option<Vec<Tensor>> =
            outputs.into_iter().map(|v| if let Value::Tensor(tensor) = v { Some(tensor) } else { None }).collect();
        let Some(tensors) = tensors.filter(|tensors| tensors.len() >= node.outputs.len()) else { continue };
        let growth = tensors.iter().map(bytes).sum::<usize>().saturating_sub(freed);
        if growth > budget {
            refuse(graph, &graph.nodes[index], "its result is larger than what is left of the byte budget", report);
            continue;
        }
        budget -= growth;
        for (output, tensor) in graph.nodes[index].outputs.clone().into_iter().zip(tensors) {
            graph.values[output.index()].fact = Fact::constant(tensor);
        }
        gone[index] = true;
        report.changed += 1;
    }
    remove(graph, &gone);
}

fn bytes(tensor: &Tensor) -> usize {
    tensor.bytes().map_or(tensor.len() * 16, <[u8]>::len)
}

fn expected_bytes(fact: &Fact) -> Option<usize> {
    Some(fact.count()?.saturating_mul(fact.dtype?.size().max(1)))
}
