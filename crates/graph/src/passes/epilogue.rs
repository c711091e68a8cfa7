use super::edit::{done, is_output, readers, refuse, remove};
use super::maps::append;
use super::{Pass, PassOptions, PassReport};
use crate::ops::{Instruction, Map, Op};
use crate::{Graph, ValueId};
use smallvec::SmallVec;

/// Grafts pointwise work onto the product, convolution or normalisation whose result it reads.
pub(super) const PASS: Pass = Pass { name: "epilogues", run };

fn run(graph: &mut Graph, _: &PassOptions, report: &mut PassReport) {
    let mut gone = vec![false; graph.nodes.len()];
    let producers = graph.producers();
    for index in 0..graph.nodes.len() {
        let Op::Map(map) = graph.nodes[index].op.clone() else { continue };
        // Counted anew: a graft before this one moved readers.
        let readers = readers(graph);
        let inputs = graph.nodes[index].inputs.clone();
        for &value in inputs.iter().flatten() {
            let Some(producer) = producers[value.index()].filter(|&producer| !gone[producer]) else { continue };
            let mut op = graph.nodes[producer].op.clone();
            let Some((first_extra, epilogue)) = slot(&mut op) else { continue };
            let node = &graph.nodes[index];
            let uses = inputs.iter().flatten().filter(|&&input| input == value).count();
            if readers[value.index()] != uses || is_output(graph, value) {
                refuse(graph, node, "something else reads the result before the pointwise work", report);
                continue;
            }
            let (result, output) = (graph.fact(value), graph.fact(node.outputs[0]));
            if result.shape.is_none() || result.shape != output.shape || result.dtype != output.dtype {
                refuse(graph, node, "the pointwise work changes shape or datatype of the result", report);
                continue;
            }
            let mut operands = graph.nodes[producer].inputs.clone();
            operands.resize(operands.len().max(first_extra), None);
            *epilogue = Some(graft(epilogue.as_ref(), &mut operands, first_extra, &map, &inputs, value));
            // At the place of the pointwise work everything that it reads is there.
            let (name, origin) = (graph.nodes[producer].name.clone(), graph.nodes[producer].origin.clone());
            let node = &mut graph.nodes[index];
            (node.op, node.inputs, node.name, node.origin) = (op, operands, name, origin);
            gone[producer] = true;
            let what = format!(
                "{} pointwise instructions ran on into {}",
                map.instructions.len(),
                graph.nodes[index].op.name()
            );
            done(graph, &graph.nodes[index], what, report);
            break;
        }
    }
    remove(graph, &gone);
}

/// Where an operation's epilogue is, and the first input that it reads.
fn slot(op: &mut Op) -> Option<(usize, &mut Option<Map>)> {
    match op {
        Op::Contract(op) => Some((2, &mut op.epilogue)),
        Op::Conv(op) => Some((3, &mut op.epilogue)),
        Op::Norm(op) => Some((3, &mut op.epilogue)),
        _ => None,
    }
}

/// The epilogue followed by a map whose input `value` is the result so far.
fn graft(
    before: Option<&Map>,
    operands: &mut SmallVec<[Option<ValueId>; 4]>,
    first_extra: usize,
    map: &Map,
    inputs: &[Option<ValueId>],
    value: ValueId,
) -> Map {
    let mut joined = Map::default();
    let result = match before {
        Some(before) => append(&mut joined, before, &mut |_, input| Instruction::Input(input), None),
        None => joined.push(Instruction::Input(0)),
    };
    let mut place = |input: Option<ValueId>| {
        let known = operands[first_extra..].iter().position(|&known| known == input);
        known.unwrap_or_else(|| {
            operands.push(input);
            operands.len() - 1 - first_extra
        })
    };
    append(
        &mut joined,
        map,
        &mut |_, input| Instruction::Input(1 + place(inputs[input])),
        Some((&|input| inputs[input] == Some(value), result)),
    );
    joined
}
