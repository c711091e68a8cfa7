use super::edit::{is_output, refuse, remove, replace};
use super::{Pass, PassOptions, PassReport};
use crate::ops::{Instruction, Op, Reshape, Transpose};
use crate::{Dim, Graph, Node, ValueId};

/// Removes operations that change nothing, and joins transpositions and reshapes that follow each other.
pub(super) const PASS: Pass = Pass { name: "cancel movement", run };

fn run(graph: &mut Graph, _: &PassOptions, report: &mut PassReport) {
    let mut gone = vec![false; graph.nodes.len()];
    for index in 0..graph.nodes.len() {
        join(graph, index, report);
        let node = &graph.nodes[index];
        let Some(input) = identity(graph, node) else { continue };
        if is_output(graph, node.outputs[0]) {
            refuse(graph, &graph.nodes[index], "it changes nothing, but gives an output of the model its name", report);
            continue;
        }
        let output = node.outputs[0];
        replace(graph, output, input);
        gone[index] = true;
        report.changed += 1;
    }
    remove(graph, &gone);
}

/// The input that an operation gives back as it is.
fn identity(graph: &Graph, node: &Node) -> Option<ValueId> {
    let input = (*node.inputs.first()?)?;
    let (from, to) = (graph.fact(input), graph.fact(*node.outputs.first()?));
    let same_shape = from.shape.is_some() && from.shape == to.shape && from.dtype == to.dtype;
    let constant = |at: usize| node.inputs.get(at).copied().flatten().and_then(|v| graph.fact(v).ints());
    let unchanged = match &node.op {
        Op::Transpose(op) => op.perm.iter().enumerate().all(|(to, &from)| to == from),
        Op::Cast(op) => from.dtype == Some(op.to),
        Op::Reshape(_) | Op::Expand(_) | Op::Tile(_) => same_shape,
        Op::Concat(_) => node.inputs.len() == 1,
        Op::Pad(_) => constant(1).is_some_and(|pads| pads.iter().all(|&pad| pad == 0)),
        Op::Slice(_) => {
            same_shape
                && node.inputs.get(4).is_none_or(Option::is_none)
                && constant(1).is_some_and(|starts| starts.iter().all(|&start| start == 0))
        }
        Op::Map(map) => same_shape && node.inputs.len() == 1 && map.instructions == [Instruction::Input(0)],
        _ => false,
    };
    unchanged.then_some(input)
}

/// Reads past a transposition before a transposition, and past a reshape before a reshape.
fn join(graph: &mut Graph, index: usize, report: &mut PassReport) {
    let Some(Some(middle)) = graph.nodes[index].inputs.first().copied() else { return };
    let Some(before) = graph.nodes[..index].iter().rfind(|node| node.outputs.contains(&middle)) else { return };
    let Some(&Some(first)) = before.inputs.first() else { return };
    let joined = match (&before.op, &graph.nodes[index].op) {
        (Op::Transpose(a), Op::Transpose(b)) => {
            Op::Transpose(Transpose { perm: b.perm.iter().map(|&axis| a.perm[axis]).collect() })
        }
        (Op::Reshape(_), Op::Reshape(b)) => {
            let target = graph.nodes[index].inputs[1].and_then(|target| graph.fact(target).dims());
            // A 0 copies a dimension of the shape between, which then is no longer there.
            let copies = |dims: &Vec<Dim>| !b.allow_zero && dims.iter().any(|dim| dim.known() == Some(0));
            match target {
                Some(dims) if !copies(&dims) => Op::Reshape(Reshape { allow_zero: b.allow_zero }),
                _ => {
                    refuse(graph, &graph.nodes[index], "its shape copies dimensions of the reshape before it", report);
                    return;
                }
            }
        }
        _ => return,
    };
    let node = &mut graph.nodes[index];
    node.op = joined;
    node.inputs[0] = Some(first);
    report.changed += 1;
}
