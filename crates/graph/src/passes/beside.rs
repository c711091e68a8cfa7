//! Products of one operand, side by side.

use super::edit::{done, name, refuse, remove};
use super::{Pass, PassOptions, PassReport};
use crate::ops::{Contract, Factors, Op, ProductPart, Products};
use crate::{Graph, Node, ValueId};

/// Makes one step of products of one operand with constant weights, as those of queries, keys and values are.
///
/// ```text
/// x · w₁ + b₁,  x · w₂ + b₂,  ..  = products(x; w₁, b₁; w₂, b₂; ..)
/// ```
///
/// Threads then share the work of all of them and meet once, and the operand is made ready for them once.
///
/// Each keeps its weights, what follows it, and its output. So no constant is made: weights joined by the graph would lie in
/// private memory beside the file that they are mapped from, and be copied at every start. And who reads a result reads a
/// tensor of its own where it lies, not a part of a wider one.
///
/// It runs when it is decided in how many bits each product is multiplied, as that is decided for each by its name.
pub(super) const PASS: Pass = Pass { name: "products side by side", run };

type Reason = &'static str;

fn run(graph: &mut Graph, _: &PassOptions, report: &mut PassReport) {
    // Positions of products of the same operand between which nothing else is multiplied.
    let mut groups: Vec<Group> = Vec::new();
    for (index, node) in graph.nodes.iter().enumerate() {
        let Some((operand, op)) = product(graph, node) else {
            // Results that are made long before they are read would take memory, and leave the caches.
            groups.iter_mut().filter(|_| is_heavy(&node.op)).for_each(|group| group.is_closed = true);
            continue;
        };
        groups.iter_mut().filter(|group| group.operand != operand).for_each(|group| group.is_closed = true);
        let Some(group) = groups.iter_mut().rev().find(|group| group.operand == operand) else {
            groups.push(Group { operand, nodes: vec![index], is_closed: false });
            continue;
        };
        let fits = match &graph.nodes[group.nodes[0]].op {
            _ if group.is_closed => Err("something else is multiplied between them"),
            Op::Contract(first) => [&graph.nodes[group.nodes[0]], node]
                .into_iter()
                .try_for_each(|node| constants_follow(graph, node))
                .and_then(|()| is_like(op, first)),
            _ => continue,
        };
        match fits {
            Ok(()) => group.nodes.push(index),
            Err(reason) => {
                refuse(graph, node, format!("not beside the product before it: {reason}"), report);
                groups.push(Group { operand, nodes: vec![index], is_closed: false });
            }
        }
    }
    let mut gone = vec![false; graph.nodes.len()];
    for group in groups.iter().filter(|group| group.nodes.len() > 1) {
        let (first, others) = (group.nodes[0], &group.nodes[1..]);
        others.iter().for_each(|&index| gone[index] = true);
        let joined = joined(graph, &group.nodes);
        graph.nodes[first] = joined;
        done(graph, &graph.nodes[first], format!("{} products of one operand are one step", group.nodes.len()), report);
    }
    remove(graph, &gone);
}

struct Group {
    operand: ValueId,
    nodes: Vec<usize>,
    is_closed: bool,
}

/// A product of a value and a constant.
fn product<'g>(graph: &'g Graph, node: &'g Node) -> Option<(ValueId, &'g Contract)> {
    let Op::Contract(op) = &node.op else { return None };
    let &[Some(operand), Some(weights), ..] = &node.inputs[..] else { return None };
    (graph.constant(operand).is_none() && graph.constant(weights).is_some()).then_some((operand, op))
}

/// Whether an operation works long enough for what was written before to leave the caches.
fn is_heavy(op: &Op) -> bool {
    matches!(
        op,
        Op::Attention(_)
            | Op::Call(_)
            | Op::Contract(_)
            | Op::Conv(_)
            | Op::If(_)
            | Op::Loop(_)
            | Op::Rnn(_)
            | Op::Scan(_)
    )
}

/// Whether everything that a product reads beside its operand is constant, and so there wherever it runs.
fn constants_follow(graph: &Graph, node: &Node) -> Result<(), Reason> {
    let is_constant = |input: &Option<ValueId>| input.is_none_or(|value| graph.constant(value).is_some());
    if node.inputs[1..].iter().all(is_constant) { Ok(()) } else { Err("what follows it reads more than constants") }
}

/// Whether products have the same rows and the same factors.
fn is_like(op: &Contract, first: &Contract) -> Result<(), Reason> {
    if op.dequantize.is_some() || first.dequantize.is_some() {
        return Err("weights are dequantised as they are read");
    }
    if op.multiply != first.multiply {
        return Err(match (op.multiply, first.multiply) {
            (Some(Factors::Integers), _) | (_, Some(Factors::Integers)) => "one of them multiplies integers",
            _ => "one of them is exact",
        });
    }
    // Where each axis of the result but the last lies in the operand.
    let rows = |op: &Contract| -> Option<Vec<usize>> {
        op.column_axis()?;
        let (_, rows) = op.out.split_last()?;
        rows.iter().map(|row| op.lhs.iter().position(|label| label == row)).collect()
    };
    match (rows(op), rows(first)) {
        (Some(own), Some(other)) if own == other => Ok(()),
        _ => Err("the rows of their results differ"),
    }
}

fn joined(graph: &Graph, nodes: &[usize]) -> Node {
    let nodes: Vec<&Node> = nodes.iter().map(|&index| &graph.nodes[index]).collect();
    let parts = nodes.iter().filter_map(|node| match &node.op {
        Op::Contract(op) => {
            Some(ProductPart { name: node.name.clone(), product: op.clone(), inputs: node.inputs.len() - 1 })
        }
        _ => None,
    });
    let names: Vec<String> = nodes.iter().map(|node| name(graph, node)).collect();
    Node {
        name: together(&names),
        origin: nodes[0].origin.clone(),
        op: Op::Products(Products { parts: parts.collect() }),
        inputs: nodes[0].inputs[..1].iter().chain(nodes.iter().flat_map(|node| &node.inputs[1..])).copied().collect(),
        outputs: nodes.iter().flat_map(|node| node.outputs.iter().copied()).collect(),
    }
}

/// Names of a model's nodes as one: `/layer/{query, key, value}/MatMul`.
fn together(names: &[String]) -> String {
    let paths: Vec<Vec<&str>> = names.iter().map(|name| name.split('/').collect()).collect();
    let (first, shortest) = (&paths[0], paths.iter().map(Vec::len).min().unwrap_or(0));
    if paths.iter().all(|path| path == first) {
        return names[0].clone();
    }
    let leads = |&at: &usize| paths.iter().all(|path| path[at] == first[at]);
    let lead = (0..shortest).take_while(leads).count();
    let ends = |&at: &usize| paths.iter().all(|path| path[path.len() - at] == first[first.len() - at]);
    let end = (1..=shortest - lead).take_while(ends).count();
    let own: Vec<String> = paths.iter().map(|path| path[lead..path.len() - end].join("/")).collect();
    let own = own.join(", ");
    if lead + end == 0 {
        return own;
    }
    let own = format!("{{{own}}}");
    let around = first[..lead].iter().copied().chain([own.as_str()]).chain(first[first.len() - end..].iter().copied());
    around.collect::<Vec<_>>().join("/")
}

#[cfg(test)]
mod tests {
    use super::super::tests::{floats, graph, optimized};
    use super::*;
    use crate::ops::{Binary, Unary};
    use crate::passes::finish;
    use crate::{Builder, reference};
    use halimede_tensor::Value;

    fn linear(b: &mut Builder, name: &str, x: ValueId, columns: usize) -> ValueId {
        let depth = b.fact(x).known_shape().unwrap()[1];
        // Equal products would become one.
        let scale = 0.1 + 0.01 * name.len() as f32;
        let (w, bias) = (b.constant(floats(&[depth, columns], scale)), b.constant(floats(&[columns], scale)));
        let y = b.at(name, "MatMul").add(Op::Contract(Contract::matmul(0)), &[x, w]).unwrap();
        b.binary(Binary::Add, y, bias).unwrap()
    }

    /// The graph after its passes and this one, which must not change its answer.
    fn beside(built: Graph, edit: impl FnOnce(&mut Graph)) -> (Vec<&'static str>, Graph, PassReport) {
        let (_, mut graph, _) = optimized(built);
        edit(&mut graph);
        let x = [Value::Tensor(floats(&graph.fact(graph.inputs[0]).known_shape().unwrap(), 0.1))];
        let before = reference::run(&graph, &x).unwrap();
        let report = finish(&mut graph).remove(0);
        assert_eq!(before, reference::run(&graph, &x).unwrap());
        (graph.nodes.iter().map(|node| node.op.name()).collect(), graph, report)
    }

    fn sum(b: &mut Builder, values: &[ValueId]) -> ValueId {
        let (first, others) = values.split_first().unwrap();
        // Behind something that no product ends with.
        let read: Vec<ValueId> = others.iter().map(|&value| b.transpose(value, &[1, 0]).unwrap()).collect();
        let first = b.transpose(*first, &[1, 0]).unwrap();
        read.into_iter().fold(first, |sum, value| b.binary(Binary::Add, sum, value).unwrap())
    }

    #[test]
    fn products_of_one_operand_become_one_step() {
        let (names, graph, report) = beside(
            graph(&[3, 8], |b, x| {
                let [q, k, v] = ["q", "key", "value"].map(|name| linear(b, name, x, 5));
                sum(b, &[q, k, v])
            }),
            |_| {},
        );
        assert_eq!(names[0], "Products", "{report:?}");
        assert!(!names.contains(&"Contract"));
        assert_eq!((report.changed, graph.nodes[0].name.as_str()), (1, "q, key, value"));
        let Op::Products(op) = &graph.nodes[0].op else { panic!("no products") };
        let parts: Vec<(&str, usize)> = op.parts.iter().map(|part| (part.name.as_str(), part.inputs)).collect();
        assert_eq!(parts, [("q", 2), ("key", 2), ("value", 2)]);
        assert_eq!((graph.nodes[0].inputs.len(), graph.nodes[0].outputs.len()), (7, 3));
    }

    #[test]
    fn what_only_looks_like_it_stays_apart_with_its_reason() {
        type Write = fn(&mut Builder, ValueId) -> Vec<ValueId>;
        let cases: [(Write, fn(&mut Graph), &str); 5] = [
            (
                |b, x| {
                    let y = linear(b, "y", x, 8);
                    let z = linear(b, "second", y, 8);
                    vec![z, linear(b, "last", x, 8)]
                },
                |_| {},
                "something else is multiplied between them",
            ),
            (
                |b, x| {
                    let y = linear(b, "y", x, 8);
                    let z = linear(b, "second", x, 8);
                    vec![b.binary(Binary::Mul, z, x).unwrap(), y]
                },
                |_| {},
                "reads more than constants",
            ),
            (
                |b, x| vec![linear(b, "y", x, 8), linear(b, "second", x, 8)],
                |graph| *graph.nodes[0].op.multiply_mut().unwrap() = Some(Factors::Bf16),
                "one of them is exact",
            ),
            (
                |b, x| {
                    let w = b.constant(floats(&[3, 4], 0.2));
                    let turned =
                        Contract::new([2, 0].as_slice().into(), [2, 1].as_slice().into(), [0, 1].as_slice().into());
                    let turned = b.add(Op::Contract(turned), &[x, w]).unwrap();
                    vec![turned, linear(b, "y", x, 4)]
                },
                |_| {},
                "the rows of their results differ",
            ),
            // Nothing to be told of products of different operands.
            (
                |b, x| {
                    let y = b.unary(Unary::Tanh, x).unwrap();
                    vec![linear(b, "y", x, 8), linear(b, "second", y, 8)]
                },
                |_| {},
                "",
            ),
        ];
        for (write, edit, expected) in cases {
            let built = graph(&[3, 8], |b, x| {
                let values = write(b, x);
                let read =
                    values.iter().map(|&value| b.reduce(crate::ops::ReduceKind::Max, value, [0, 1], true).unwrap());
                let read: Vec<ValueId> = read.collect();
                sum(b, &read)
            });
            let (names, _, report) = beside(built, edit);
            assert_eq!(
                names.iter().filter(|name| **name == "Contract").count(),
                if expected.contains("between") { 3 } else { 2 }
            );
            assert_eq!(report.changed, 0, "{expected}");
            let reasons: Vec<&str> = report.refusals.iter().map(|refusal| refusal.reason.as_str()).collect();
            assert_eq!(reasons.len(), usize::from(!expected.is_empty()), "{reasons:?}");
            assert!(reasons.iter().all(|reason| reason.contains(expected)), "{reasons:?}");
        }
    }

    #[test]
    fn names_are_told_together() {
        let cases: [(&[&str], &str); 4] = [
            (&["/0/self/query/MatMul", "/0/self/key/MatMul"], "/0/self/{query, key}/MatMul"),
            (&["q", "k"], "q, k"),
            (&["/q", "/q"], "/q"),
            (&["/a/b/c", "/a/c"], "/a/{b, }/c"),
        ];
        for (names, expected) in cases {
            let names: Vec<String> = names.iter().map(|name| name.to_string()).collect();
            assert_eq!(together(&names), expected);
        }
    }

    #[test]
    fn those_that_are_alike_are_joined_past_one_that_is_not() {
        let (names, graph, report) = beside(
            graph(&[3, 8], |b, x| {
                let [q, k, v] = ["q", "key", "value"].map(|name| linear(b, name, x, 5));
                sum(b, &[q, k, v])
            }),
            |graph| {
                for node in &mut graph.nodes[1..3] {
                    *node.op.multiply_mut().unwrap() = Some(Factors::Bf16);
                }
            },
        );
        assert_eq!(names[..2], ["Contract", "Products"], "{report:?}");
        assert_eq!(graph.nodes[1].op.multiply(), Some(Factors::Bf16));
        assert_eq!((report.changed, report.refusals.len()), (1, 1));
    }
}
