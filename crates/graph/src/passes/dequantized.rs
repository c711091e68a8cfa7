use super::edit::{Made, Reason, rework};
use super::{Pass, PassOptions, PassReport};
use crate::ops::{Contract, Dequantize, Op};
use crate::{Graph, ValueId};
use halimede_tensor::DType;
use smallvec::smallvec;

/// Lets a product read weights of few bits as they are kept, and dequantise them as it multiplies: they stay as small
/// in memory, and a product of few rows takes as long as they take to be read.
///
/// ```text
/// x · dequantize(w, scale, zero)               = contract(x, w, scale, zero)
/// x · transpose(dequantize(w, scale, zero))    = the same with the labels of w in turn
/// ```
///
/// It runs before constants are folded, while weights still are integers.
pub(super) const PASS: Pass = Pass { name: "dequantised weights", run };

fn run(graph: &mut Graph, _: &PassOptions, report: &mut PassReport) {
    let said = ("its weights are dequantised before", "dequantises its weights as it multiplies");
    rework(graph, report, said, |graph, index, producers| product(graph, index, producers));
}

/// The product that reads its right operand before its dequantisation; `None` where there is none.
fn product(graph: &Graph, index: usize, producers: &[Option<usize>]) -> Option<Result<Made, Reason>> {
    let node = &graph.nodes[index];
    let Op::Contract(op @ Contract { multiply: None, dequantize: None, epilogue: None, .. }) = &node.op else {
        return None;
    };
    let (data, mut weights) = (node.inputs[0]?, &graph.nodes[producers[node.inputs[1]?.index()]?]);
    let mut rhs = op.rhs.clone();
    if let Op::Transpose(turn) = &weights.op {
        for (&axis, &label) in turn.perm.iter().zip(&op.rhs) {
            rhs[axis] = label;
        }
        weights = &graph.nodes[producers[weights.inputs[0]?.index()]?];
    }
    let Op::Dequantize(dequantize) = &weights.op else { return None };
    let op = Contract { rhs, dequantize: Some(dequantize.clone()), ..op.clone() };
    let [codes, scales, zeros] = [0, 1, 2].map(|at| weights.inputs.get(at).copied().flatten());
    let is_constant = |value: Option<ValueId>| value.is_none_or(|value| graph.constant(value).is_some());
    let f32s = [Some(data), scales, Some(weights.outputs[0])]
        .iter()
        .all(|value| value.is_some_and(|value| graph.fact(value).dtype == Some(DType::F32)));
    let reason = if ![codes, scales, zeros].into_iter().all(is_constant) {
        "they are no constant"
    } else if !f32s {
        "something in it is not of f32"
    } else if !codes.and_then(|codes| graph.fact(codes).dtype).is_some_and(is_of_few_bits) {
        "they are no integers of 8 bits or fewer"
    } else if graph.constant(data).is_some() || !scales_follow_columns(graph, &op, dequantize, scales?) {
        "their scales do not stand for columns"
    } else {
        return Some(Ok((Op::Contract(op), smallvec![Some(data), codes, scales, zeros])));
    };
    Some(Err(reason))
}

fn is_of_few_bits(dtype: DType) -> bool {
    dtype.is_integer() && dtype.bits() <= 8
}

/// Whether each column of a matrix of weights has scales of its own, one or one for each block of it, or all have one.
fn scales_follow_columns(graph: &Graph, op: &Contract, dequantize: &Dequantize, scales: ValueId) -> bool {
    let Some(column) = op.column_axis() else { return false };
    match dequantize.block {
        0 => dequantize.axis == column || graph.fact(scales).count() == Some(1),
        _ => dequantize.axis == 1 - column,
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{floats, graph};
    use super::super::{PassOptions, optimize};
    use crate::ops::{Contract, Dequantize, Op};
    use crate::{Builder, Graph, ValueId, reference};
    use halimede_tensor::{DType, Tensor, Value};

    /// Weights of 4 bits of that shape under scales of that shape.
    fn weights(b: &mut Builder, shape: &[usize], scales: &[usize], axis: usize, block: usize) -> ValueId {
        let count: usize = shape.iter().product();
        let codes: Vec<i64> = (0..count).map(|i| (i * 7 % 16) as i64 - 8).collect();
        let codes = b.constant(Tensor::from_i64s(DType::I4, shape, &codes).unwrap());
        let scales = b.constant(floats(scales, 0.5));
        b.add(Op::Dequantize(Dequantize { to: None, axis, block }), &[codes, scales]).unwrap()
    }

    /// What became of a product, whose answer is the same as before, and why it was left where it was.
    fn optimized(before: Graph) -> (Graph, Vec<String>) {
        let mut after = before.clone();
        let reports = optimize(&mut after, &PassOptions::default());
        let x = [Value::Tensor(floats(&[2, 6], 0.1))];
        let run = |graph| reference::run(graph, &x).unwrap()[0].tensor().unwrap().to_f32s().unwrap();
        assert_eq!(run(&before), run(&after));
        let report = reports.into_iter().find(|report| report.pass == super::PASS.name).unwrap();
        (after, report.refusals.into_iter().map(|refusal| refusal.reason).collect())
    }

    fn matmul(b: &mut Builder, x: ValueId, w: ValueId) -> ValueId {
        b.add(Op::Contract(Contract::matmul(0)), &[x, w]).unwrap()
    }

    #[test]
    fn weights_stay_in_few_bits() {
        for (scales, axis, block) in [(&[3, 5][..], 0, 2), (&[2, 5], 0, 4), (&[5], 1, 0), (&[], 0, 0)] {
            let (after, _) = optimized(graph(&[2, 6], |b, x| {
                let w = weights(b, &[6, 5], scales, axis, block);
                matmul(b, x, w)
            }));
            let [node] = &after.nodes[..] else { panic!("one product") };
            assert_eq!(after.fact(node.inputs[1].unwrap()).dtype, Some(DType::I4));
        }
        let (after, _) = optimized(graph(&[2, 6], |b, x| {
            let w = weights(b, &[5, 6], &[5, 2], 1, 3);
            let w = b.transpose(w, &[1, 0]).unwrap();
            matmul(b, x, w)
        }));
        assert_eq!(after.nodes.len(), 1);
    }

    #[test]
    fn scales_of_rows_are_multiplied_before() {
        let (after, refusals) = optimized(graph(&[2, 6], |b, x| {
            let w = weights(b, &[6, 5], &[6], 0, 0);
            matmul(b, x, w)
        }));
        assert_eq!(after.fact(after.nodes[0].inputs[1].unwrap()).dtype, Some(DType::F32));
        assert!(refusals[0].contains("do not stand for columns"), "{refusals:?}");
    }
}
