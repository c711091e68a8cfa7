use super::edit::{done, is_output, readers, refuse, remove};
use super::integers::multiplies_integers;
use super::maps::append;
use super::{Pass, PassOptions, PassReport};
use crate::ops::{Instruction, Map, Op, Scale, Scaled};
use crate::{Fact, Graph, ValueId};
use halimede_tensor::DType;
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
            let mut operands = graph.nodes[producer].inputs.clone();
            operands.resize(operands.len().max(first_extra), None);
            let joined = graft(epilogue.as_ref(), &mut operands, first_extra, &map, &inputs, value);
            let fits = match result.dtype {
                dtype if !multiplies_integers(&graph.nodes[producer]) => dtype == output.dtype,
                // What has been quantised stays so: a second quantisation would be worked out the long way.
                Some(DType::I32 | DType::F32) => {
                    scales_integers(graph, &graph.nodes[producer].op, &joined, &operands, output)
                }
                _ => false,
            };
            if result.shape.is_none() || result.shape != output.shape || !fits {
                refuse(graph, node, "the pointwise work changes shape or datatype of the result", report);
                continue;
            }
            *epilogue = Some(joined);
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

/// Whether an epilogue of a product of integers takes its sums to f32, by scales that are one or count the
/// columns, and perhaps quantises what it makes of them.
fn scales_integers(graph: &Graph, op: &Op, epilogue: &Map, operands: &[Option<ValueId>], output: &Fact) -> bool {
    let (Some(Scaled { bias, scales, .. }), Some(rank)) = (Scaled::of(epilogue), output.rank()) else { return false };
    // The columns of a convolution are its channels, axis 1 of the result where they do not lie last.
    let from_end = if matches!(op, Op::Conv(op) if !op.channels_last) { rank - 1 } else { 1 };
    let counts_columns = |input: usize| {
        let Some(shape) = operands[FIRST_OF_INTEGERS + input - 1].and_then(|value| graph.fact(value).shape.as_ref())
        else {
            return false;
        };
        let other = |axis: usize| axis + from_end != shape.len();
        (0..shape.len()).filter(|&axis| other(axis)).all(|axis| shape[axis].known() == Some(1))
    };
    let inputs = scales.iter().filter_map(|scale| if let Scale::Input(input) = scale { Some(*input) } else { None });
    let whole = matches!(output.dtype, Some(DType::U8 | DType::I8)) && epilogue.quantizes();
    inputs.chain(bias).all(counts_columns) && (whole || output.dtype == Some(DType::F32))
}

/// The first input that the epilogue of a product of integers reads.
const FIRST_OF_INTEGERS: usize = 3;

/// Where an operation's epilogue is, and the first input that it reads.
fn slot(op: &mut Op) -> Option<(usize, &mut Option<Map>)> {
    match op {
        Op::Contract(op) => Some((op.first_extra(), &mut op.epilogue)),
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
