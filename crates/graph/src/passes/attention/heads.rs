//! Heads where tokens have them.

use super::super::edit::{done, readers, remove};
use super::super::{Pass, PassOptions, PassReport};
use crate::{Graph, Op, ValueId};

/// Lets attention read and write tokens before heads, as products of tokens write and read them: what turned them to
/// and fro moved every number for nothing.
///
/// ```text
/// [B, S, H·D] → [B, S, H, D] → transpose → [B, H, S, D] → attention → transpose → [B, S, H, D] → [B, S, H·D]
/// ```
pub(in super::super) const PASS: Pass = Pass { name: "heads of tokens", run };

/// Where the result is among what an attention reads and writes, by number.
const RESULT: usize = 3;

fn run(graph: &mut Graph, _: &PassOptions, report: &mut PassReport) {
    let producers = graph.producers();
    let consumers = graph.consumers();
    let readers = readers(graph);
    let mut gone = vec![false; graph.nodes.len()];
    for index in 0..graph.nodes.len() {
        if !matches!(graph.nodes[index].op, Op::Attention(_)) {
            continue;
        }
        let mut turned = [false; 4];
        for (operand, turned) in turned[..RESULT].iter_mut().enumerate() {
            let producer = graph.nodes[index].inputs[operand].and_then(|value| producers[value.index()]);
            // What another attention writes in the place of a turn is read as it is.
            let producer = producer.filter(|&producer| !gone[producer]);
            if let Some(source) = producer.and_then(|producer| source_of_turn(graph, producer)) {
                graph.nodes[index].inputs[operand] = Some(source);
                *turned = true;
            }
        }
        let result = graph.nodes[index].outputs[0];
        if let &[reader] = &consumers[result.index()][..]
            && readers[result.index()] == 1
            && source_of_turn(graph, reader).is_some()
        {
            graph.nodes[index].outputs[0] = graph.nodes[reader].outputs[0];
            (gone[reader], turned[RESULT]) = (true, true);
        }
        let Op::Attention(op) = &mut graph.nodes[index].op else { continue };
        for (tokens_first, turned) in op.tokens_first.iter_mut().zip(turned) {
            *tokens_first ^= turned;
        }
        let count = turned.iter().filter(|turned| **turned).count();
        if count > 0 {
            done(
                graph,
                &graph.nodes[index],
                format!("reads and writes heads as they lie: {count} of 4 not turned"),
                report,
            );
        }
    }
    remove(graph, &gone);
}

/// What a node turns, where it lets heads and tokens change places.
fn source_of_turn(graph: &Graph, node: usize) -> Option<ValueId> {
    let node = &graph.nodes[node];
    match &node.op {
        Op::Transpose(turn) if turn.perm[..] == [0, 2, 1, 3] => node.inputs[0],
        _ => None,
    }
}
