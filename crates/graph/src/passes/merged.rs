use super::edit::done;
use super::{Pass, PassOptions, PassReport};
use crate::ops::{Concat, Contract, Instruction, Labels, Op, Reshape, ShapeOf, Softmax};
use crate::{Builder, Dim, Dims, Graph, Node, OpError, ValueId};
use smallvec::{SmallVec, smallvec};

/// Gives axes that an exporter merged their own places again: heads merged with the batch for a batched
/// product, positions merged with the batch for a linear layer. The merging reshape moves behind products,
/// softmax and pointwise work, until it meets its inverse; what stood on both sides of it can then be one.
///
/// ```text
/// merge(x [B, H, S, D]) · merge(y [B, H, D, T])   = merge(x · y)
/// merge(x [B, S, K]) · w [K, N]                   = merge(x · w)
/// softmax(merge(x)) along the last axis           = merge(softmax(x))
/// f(merge(x), c)                                  = merge(f(x, c))
/// ```
///
/// Around a softmax, batches that come merged from elsewhere become heads of one batch.
pub(super) const PASS: Pass = Pass { name: "merged axes", run };

fn run(graph: &mut Graph, _: &PassOptions, report: &mut PassReport) {
    split_batches(graph);
    let mut index = 0;
    while index < graph.nodes.len() {
        let Some(lifted) = Lifted::find(graph, index) else {
            index += 1;
            continue;
        };
        let node = graph.nodes[index].clone();
        let tail = graph.nodes.split_off(index);
        match lifted.write(graph, &node) {
            Ok(()) => {
                done(graph, &node, "reads its axes unmerged", report);
                graph.nodes.extend(tail.into_iter().skip(1));
            }
            Err(_) => {
                graph.nodes.truncate(index);
                graph.nodes.extend(tail);
                index += 1;
            }
        }
    }
}

/// An operation with the values that its merged inputs come from.
struct Lifted {
    op: Op,
    inputs: SmallVec<[Option<ValueId>; 4]>,
}

impl Lifted {
    fn find(graph: &Graph, index: usize) -> Option<Lifted> {
        let node = &graph.nodes[index];
        let rank = graph.fact(node.outputs[0]).rank().filter(|rank| (2..=3).contains(rank))?;
        let view = View { graph, producers: graph.producers() };
        let input = |at: usize| node.inputs.get(at).copied().flatten();
        match &node.op {
            Op::Contract(op) if op.epilogue.is_none() && rank == 2 => {
                // Rows alone are merged: the right operand knows nothing of them.
                let (value, _) = view.merged(input(0)?)?;
                if op.lhs.len() != 2 || op.out.len() != 2 {
                    return None;
                }
                let rows = op.lhs[0] == op.out[0] && !op.rhs.contains(&op.out[0]);
                let fresh = fresh_label(op)?;
                let labels = |own: &Labels| -> Labels { [own[0], fresh, own[1]].into_iter().collect() };
                let (lhs, out) = (labels(&op.lhs), labels(&op.out));
                let op = Contract { lhs, out, ..op.clone() };
                let inputs = [Some(value)].into_iter().chain(node.inputs[1..].iter().copied()).collect();
                rows.then(|| Lifted { op: Op::Contract(op), inputs })
            }
            Op::Contract(op) if op.epilogue.is_none() => {
                let (lhs, rhs) = (view.source(input(0)?, &op.lhs)?, view.source(input(1)?, &op.rhs)?);
                let batched = op.lhs.len() == 3 && op.rhs.len() == 3 && op.out.len() == 3 && node.inputs.len() == 2;
                let batch = op.out[0];
                let first = lhs.batch == batch && rhs.batch == batch && lhs.heads[..] == rhs.heads[..];
                let fresh = fresh_label(op)?;
                let out = [batch, fresh].into_iter().chain(op.out[1..].iter().copied()).collect();
                let labels = |source: &Source| [batch, fresh].into_iter().chain(source.rest).collect();
                let op = Contract::new(labels(&lhs), labels(&rhs), out);
                (batched && first)
                    .then(|| Lifted { op: Op::Contract(op), inputs: smallvec![Some(lhs.value), Some(rhs.value)] })
            }
            Op::Softmax(op) if op.axis == 2 && rank == 3 => {
                let (value, _) = view.merged(input(0)?)?;
                Some(Lifted { op: Op::Softmax(Softmax { axis: 3, log: op.log }), inputs: smallvec![Some(value)] })
            }
            Op::Map(map) => {
                let result = graph.fact(node.outputs[0]).shape.as_ref()?;
                let mut heads: Option<[Dim; 2]> = None;
                let mut inputs: SmallVec<[Option<ValueId>; 4]> = SmallVec::new();
                for value in node.inputs.iter().copied() {
                    let shape = graph.fact(value?).shape.as_ref()?;
                    inputs.push(match view.merged(value?) {
                        Some((source, own)) if shape == result => {
                            if *heads.get_or_insert_with(|| own.clone()) != own {
                                return None;
                            }
                            Some(source)
                        }
                        // Broadcasts over what was merged, or there is only one batch.
                        _ if shape.len() < rank || shape[0].known() == Some(1) => value,
                        _ => None,
                    });
                }
                let heads = heads?;
                for (input, value) in inputs.iter_mut().zip(&node.inputs) {
                    if input.is_none() {
                        // With one batch the heads stand where the batch stood.
                        *input = (*value).filter(|_| heads[0].known() == Some(1));
                        input.as_ref()?;
                    }
                }
                let reads = map.instructions.iter().any(|i| matches!(i, Instruction::Input(_)));
                reads.then(|| Lifted { op: Op::Map(map.clone()), inputs })
            }
            _ => None,
        }
    }

    /// Writes the operation with all axes and the merging reshape behind it.
    fn write(self, graph: &mut Graph, node: &Node) -> Result<(), OpError> {
        let mut builder = Builder::new(graph);
        builder.at(&node.name, &node.origin);
        let y = builder.add_with_optional(self.op, &self.inputs)?;
        let rest = builder.add(Op::ShapeOf(ShapeOf { start: 2, end: None }), &[y])?;
        let first = builder.ints(&[-1]);
        let target = builder.add(Op::Concat(Concat { axis: 0 }), &[first, rest])?;
        graph.nodes.push(Node {
            op: Op::Reshape(Reshape { allow_zero: false }),
            inputs: smallvec![Some(y), Some(target)],
            outputs: node.outputs.clone(),
            name: node.name.clone(),
            origin: node.origin.clone(),
        });
        Ok(())
    }
}

/// A label that a product does not have.
fn fresh_label(op: &Contract) -> Option<u8> {
    (0..128u8).find(|label| ![&op.lhs, &op.rhs, &op.out].iter().any(|labels| labels.contains(label)))
}

/// The value of four axes that an operand of three comes from.
struct Source {
    value: ValueId,
    /// Sizes of batch and heads.
    heads: [Dim; 2],
    /// The label of the merged axis, and those of the others as they lie in the value.
    batch: u8,
    rest: [u8; 2],
}

struct View<'g> {
    graph: &'g Graph,
    producers: Vec<Option<usize>>,
}

impl View<'_> {
    fn producer(&self, value: ValueId) -> Option<&Node> {
        self.producers[value.index()].map(|index| &self.graph.nodes[index])
    }

    /// The operand before its first two axes were merged, past a transposition of the others.
    fn source(&self, mut value: ValueId, labels: &[u8]) -> Option<Source> {
        let &[batch, mut a, mut b] = labels else { return None };
        if let Some(node) = self.producer(value)
            && let Op::Transpose(op) = &node.op
            && op.perm[..] == [0, 2, 1]
        {
            (value, a, b) = (node.inputs[0]?, b, a);
        }
        let (value, heads) = self.merged(value).filter(|(source, _)| self.graph.fact(*source).rank() == Some(4))?;
        Some(Source { value, heads, batch, rest: [a, b] })
    }

    /// The value whose first two axes a reshape merged, and their sizes.
    fn merged(&self, value: ValueId) -> Option<(ValueId, [Dim; 2])> {
        let node = self.producer(value)?;
        let (Op::Reshape(_), source) = (&node.op, node.inputs[0]?) else { return None };
        let shape = |value: ValueId| self.graph.fact(value).shape.as_deref();
        let ([b, h, rest @ ..], [n, kept @ ..]) = (shape(source)?, shape(value)?) else { return None };
        let whole = ![b, h].into_iter().chain(rest).any(Dim::is_unknown);
        (whole && rest == kept && *n == b.clone() * h.clone()).then(|| (source, [b.clone(), h.clone()]))
    }
}

/// Writes the merging reshape, and its inverse before it, on the operands of attention over three axes that
/// come from elsewhere.
fn split_batches(graph: &mut Graph) {
    let view = View { graph, producers: graph.producers() };
    let consumers = graph.consumers();
    let mut operands: Vec<ValueId> = Vec::new();
    for node in &graph.nodes {
        let (Op::Softmax(op), Some(Some(input))) = (&node.op, node.inputs.first()) else { continue };
        if op.axis != 2 || graph.fact(*input).rank() != Some(3) {
            continue;
        }
        let product = |node: &Node| match &node.op {
            Op::Contract(op) => [&op.lhs, &op.rhs, &op.out].iter().all(|l| l.len() == 3 && l[0] == op.out[0]),
            _ => false,
        };
        let [after] = consumers[node.outputs[0].index()][..] else { continue };
        let (Some(before), after) = (view.product_before(*input, 0), &graph.nodes[after]) else { continue };
        if !product(before) || !product(after) {
            continue;
        }
        let given = before.inputs.iter().chain(&after.inputs).flatten().copied();
        let own: Vec<ValueId> = given.filter(|&value| value != node.outputs[0]).collect();
        let plain = |&value: &ValueId| {
            let labels = [0, 1, 2];
            view.source(value, &labels).is_none() && graph.fact(value).shape.is_some()
        };
        if own.iter().all(plain) {
            operands.extend(own);
        }
    }
    for operand in operands {
        // The same value may be read by several products.
        let last = graph.nodes.iter().position(|node| node.outputs.contains(&operand));
        let place = last.map_or(0, |last| last + 1);
        let Some(shape) = graph.fact(operand).shape.clone() else { continue };
        let mut tail = graph.nodes.split_off(place);
        let merged = split_and_merge(graph, operand, &shape);
        if let Ok(merged) = merged {
            let inputs = tail.iter_mut().filter(|node| matches!(node.op, Op::Contract(_)));
            for input in inputs.flat_map(|node| node.inputs.iter_mut().flatten()).filter(|input| **input == operand) {
                *input = merged;
            }
        } else {
            graph.nodes.truncate(place);
        }
        graph.nodes.append(&mut tail);
    }
}

/// `x [N, S, D]` as `[1, N, S, D]` and back.
fn split_and_merge(graph: &mut Graph, x: ValueId, shape: &Dims) -> Result<ValueId, OpError> {
    let mut builder = Builder::new(graph);
    let sizes = builder.shape_of(x)?;
    let one = builder.ints(&[1]);
    let target = builder.add(Op::Concat(Concat { axis: 0 }), &[one, sizes])?;
    let split = builder.reshape_to(x, target)?;
    let merged = builder.reshape_to(split, sizes)?;
    debug_assert_eq!(builder.fact(merged).shape.as_ref(), Some(shape));
    Ok(merged)
}

impl View<'_> {
    /// The product that gives `value`, behind pointwise work alone.
    fn product_before(&self, value: ValueId, steps: usize) -> Option<&Node> {
        let node = self.producer(value)?;
        match &node.op {
            Op::Contract(_) => Some(node),
            Op::Map(_) if steps < 8 => {
                node.inputs.iter().flatten().find_map(|&input| self.product_before(input, steps + 1))
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{floats, graph, optimized};
    use crate::ops::{Binary, Contract, Op};

    #[test]
    fn a_linear_layer_on_merged_rows_takes_what_follows() {
        // As GPT-2's exporter writes it: [B, S, K] as rows, a Gemm, its axes again, and a residual.
        let (names, after, reports) = optimized(graph(&[2, 3, 4], |b, x| {
            let rows = b.reshape(x, &[-1, 4]).unwrap();
            let (w, bias) = (b.constant(floats(&[4, 4], 0.2)), b.constant(floats(&[4], 1.0)));
            let y = b.add(Op::Contract(Contract::matmul(0)), &[rows, w]).unwrap();
            let y = b.binary(Binary::Add, y, bias).unwrap();
            let y = b.reshape(y, &[2, 3, 4]).unwrap();
            b.binary(Binary::Add, x, y).unwrap()
        }));
        assert_eq!(names, ["Contract"], "{reports:?}");
        assert_eq!(after.nodes[0].inputs.len(), 4);
    }

    #[test]
    fn rows_that_are_not_merged_are_left() {
        let (names, _, reports) = optimized(graph(&[2, 6, 4], |b, x| {
            let rows = b.reshape(x, &[6, 8]).unwrap();
            let w = b.constant(floats(&[8, 4], 0.2));
            let y = b.add(Op::Contract(Contract::matmul(0)), &[rows, w]).unwrap();
            b.reshape(y, &[2, 3, 4]).unwrap()
        }));
        assert_eq!(names, ["Reshape", "Contract", "Reshape"]);
        assert_eq!(reports.iter().find(|report| report.pass == "merged axes").unwrap().changed, 0);
    }
}
