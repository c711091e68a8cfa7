use super::edit::done;
use super::{Pass, PassOptions, PassReport};
use crate::{Graph, Op};

/// Lets a product read a constant as it lies instead of transposed: labels say which axis is which, and
/// weights are packed from any order. Constants larger than the folding budget would be turned at every
/// run otherwise.
pub(super) const PASS: Pass = Pass { name: "transposed weights", run };

fn run(graph: &mut Graph, _: &PassOptions, report: &mut PassReport) {
    let producers = graph.producers();
    for index in 0..graph.nodes.len() {
        for side in 0..2 {
            let Op::Contract(op) = &graph.nodes[index].op else { continue };
            let Some(producer) = graph.nodes[index].inputs[side].and_then(|value| producers[value.index()]) else {
                continue;
            };
            let Op::Transpose(turn) = &graph.nodes[producer].op else { continue };
            let Some(source) = graph.nodes[producer].inputs[0].filter(|&source| graph.constant(source).is_some())
            else {
                continue;
            };
            let labels = if side == 0 { &op.lhs } else { &op.rhs };
            let mut own = labels.clone();
            for (&axis, &label) in turn.perm.iter().zip(labels) {
                own[axis] = label;
            }
            let node = &mut graph.nodes[index];
            node.inputs[side] = Some(source);
            if let Op::Contract(op) = &mut node.op {
                *(if side == 0 { &mut op.lhs } else { &mut op.rhs }) = own;
            }
            done(graph, &graph.nodes[index], "reads its weights as they lie, not transposed", report);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{floats, graph};
    use super::super::{PassOptions, optimize};
    use crate::ops::{Contract, Op};
    use crate::reference;
    use halimede_tensor::Value;

    #[test]
    fn a_large_constant_is_never_turned() {
        let model = graph(&[2, 400], |b, x| {
            let w = b.constant(floats(&[300, 400], 0.01));
            let turned = b.transpose(w, &[1, 0]).unwrap();
            let y = b.add(Op::Contract(Contract::matmul(0)), &[x, turned]).unwrap();
            b.add(Op::Contract(Contract::matmul(0)), &[y, w]).unwrap()
        });
        let mut after = model.clone();
        let reports = optimize(&mut after, &PassOptions { fold_bytes_max: 0, ..PassOptions::default() });
        assert_eq!(after.nodes.iter().map(|node| node.op.name()).collect::<Vec<_>>(), ["Contract", "Contract"]);
        assert!(reports.iter().flat_map(|r| &r.rewrites).any(|r| r.what.contains("not transposed")));
        let x = [Value::Tensor(floats(&[2, 400], 0.01))];
        let run = |graph| reference::run(graph, &x).unwrap()[0].tensor().unwrap().to_f32s().unwrap();
        assert_eq!(run(&model), run(&after));
    }

    #[test]
    fn what_is_computed_is_left() {
        let mut model = graph(&[4, 4], |b, x| {
            let turned = b.transpose(x, &[1, 0]).unwrap();
            b.add(Op::Contract(Contract::matmul(0)), &[x, turned]).unwrap()
        });
        optimize(&mut model, &PassOptions::default());
        assert_eq!(model.nodes.len(), 2);
    }
}
