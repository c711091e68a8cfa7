use super::edit::{done, is_output, readers, replace};
use super::integers::{Steps, is_byte};
use super::{Pass, PassOptions, PassReport};
use crate::ops::{Dequantize, Op, Pool, PoolKind, Quantize};
use crate::{Fact, Graph, Node, ValueId};

/// Lets integers pass through what takes or moves numbers without computing any: a larger integer stands for a
/// larger number, since scales are positive.
///
/// ```text
/// max pool(dequantize(x)) = dequantize(max pool(x))
/// quantize(dequantize(x)) = x, by the same scale and zero point
/// ```
pub(super) const PASS: Pass = Pass { name: "integers in order", run };

fn run(graph: &mut Graph, _: &PassOptions, report: &mut PassReport) {
    let (mut producers, readers) = (graph.producers(), readers(graph));
    for index in 0..graph.nodes.len() {
        if let Some(before) = moved(graph, index, &producers, &readers) {
            exchange(graph, before, index);
            // The value between them is new.
            producers.resize(graph.values.len(), None);
            for place in [before, index] {
                producers[graph.nodes[place].outputs[0].index()] = Some(place);
            }
            done(graph, &graph.nodes[before], "it runs on integers", report);
        }
    }
    for index in 0..graph.nodes.len() {
        if let Some((same, integers)) = identity(graph, &graph.nodes[index], &producers) {
            replace(graph, same, integers);
            done(graph, &graph.nodes[index], "it gives back what was dequantised before", report);
        }
    }
}

/// The dequantisation before a node that could as well stand behind it.
fn moved(graph: &Graph, index: usize, producers: &[Option<usize>], readers: &[usize]) -> Option<usize> {
    let node = &graph.nodes[index];
    let keeps = matches!(
        &node.op,
        Op::Pool(Pool { kind: PoolKind::Max { .. }, outputs: 1, .. }) | Op::Reshape(_) | Op::Transpose(_)
    );
    // What else it reads must be there where the dequantisation stands.
    let constant = node.inputs.iter().skip(1).flatten().all(|&value| graph.constant(value).is_some());
    let x = node.inputs.first().copied().flatten().filter(|_| keeps && constant)?;
    let before = producers[x.index()]?;
    let dequantize = &graph.nodes[before];
    let Op::Dequantize(Dequantize { block: 0, .. }) = &dequantize.op else { return None };
    let data = graph.fact(dequantize.inputs[0]?);
    Steps::of(graph, dequantize)?;
    let alone = readers.get(x.index()) == Some(&1) && !is_output(graph, x);
    (alone && is_byte(data.dtype) && data.constant.is_none()).then_some(before)
}

/// Lets a dequantisation and the node that reads it change places.
fn exchange(graph: &mut Graph, before: usize, index: usize) {
    let (integers, result) = (graph.nodes[before].inputs[0], graph.nodes[index].outputs[0]);
    let dtype = integers.and_then(|value| graph.fact(value).dtype);
    let name = format!("{}/integers", graph.values[result.index()].name);
    let between = graph.add_value(name, Fact { dtype, shape: graph.fact(result).shape.clone(), ..Fact::default() });
    graph.nodes[index].inputs[0] = integers;
    graph.nodes[index].outputs[0] = between;
    graph.nodes[before].inputs[0] = Some(between);
    graph.nodes[before].outputs[0] = result;
    graph.nodes.swap(before, index);
}

/// The result of a quantisation, and the integers that it is.
fn identity(graph: &Graph, node: &Node, producers: &[Option<usize>]) -> Option<(ValueId, ValueId)> {
    let Op::Quantize(Quantize { to, block: 0, precision: None, .. }) = node.op else { return None };
    let before = &graph.nodes[producers[node.inputs[0]?.index()]?];
    let Op::Dequantize(Dequantize { block: 0, .. }) = &before.op else { return None };
    let (integers, result) = (before.inputs[0]?, node.outputs[0]);
    let same = Steps::of(graph, node)? == Steps::of(graph, before)? && graph.fact(integers).dtype == Some(to);
    (same && is_byte(Some(to)) && !is_output(graph, result)).then_some((result, integers))
}

#[cfg(test)]
mod tests {
    use super::super::integers::tests::quantize;
    use super::super::tests::{graph, optimized};
    use super::*;
    use crate::Builder;
    use crate::ops::{Padding, Unary};
    use smallvec::smallvec;

    fn pool(b: &mut Builder, x: ValueId) -> ValueId {
        let op = Pool {
            kind: PoolKind::Max { column_major: false },
            kernel: smallvec![2, 2],
            strides: smallvec![2, 2],
            dilations: smallvec![1, 1],
            padding: Padding::Explicit(smallvec![0, 0, 0, 0]),
            ceil_mode: false,
            outputs: 1,
            channels_last: false,
        };
        b.add(Op::Pool(op), &[x]).unwrap()
    }

    #[test]
    fn the_largest_integer_is_the_largest_number() {
        for (scale, zero, quantizations) in [(0.25, 3, 1), (0.5, 3, 2), (0.25, 4, 2)] {
            let (names, graph, reports) = optimized(graph(&[1, 2, 4, 4], |b, x| {
                let x = quantize(b, x, 0.25, 3);
                let x = pool(b, x);
                let x = quantize(b, x, scale, zero);
                b.unary(Unary::Tanh, x).unwrap()
            }));
            assert_eq!(names[..2], ["Quantize", "Pool"], "{reports:?}");
            assert_eq!(names.iter().filter(|&&name| name == "Quantize").count(), quantizations, "{names:?}");
            let pooled = graph.nodes.iter().find(|node| matches!(node.op, Op::Pool(_))).unwrap();
            assert!(is_byte(graph.fact(pooled.outputs[0]).dtype));
        }
    }
}
