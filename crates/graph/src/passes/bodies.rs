use super::edit::{done, remove};
use super::{Pass, PassOptions, PassReport};
use crate::{Builder, Graph, Op};
use std::sync::Arc;

/// Puts the branch in the place of an If whose condition is known, and gives bodies the constants that
/// they take from outside: only then can passes inside fold them and kernels pack them.
pub(super) const PASS: Pass = Pass { name: "constants into bodies", run };

fn run(graph: &mut Graph, _: &PassOptions, report: &mut PassReport) {
    for index in 0..graph.nodes.len() {
        give_constants(graph, index, report);
    }
    let mut index = 0;
    while index < graph.nodes.len() {
        match take_branch(graph, index) {
            Some(count) => {
                report.changed += 1;
                index += count;
            }
            None => index += 1,
        }
    }
}

fn give_constants(graph: &mut Graph, index: usize, report: &mut PassReport) {
    let Some((first, inner)) = graph.nodes[index].op.first_outside() else { return };
    let count = graph.nodes[index].inputs.len();
    let mut given = 0;
    for at in (first..count).rev() {
        let Some(constant) = graph.nodes[index].inputs[at].and_then(|value| graph.constant(value)).cloned() else {
            continue;
        };
        let node = &mut graph.nodes[index];
        for body in node.op.bodies_mut() {
            let body = Arc::make_mut(body);
            let value = body.inputs.remove(inner + at - first);
            body.values[value.index()].fact = crate::Fact::constant(constant.clone());
        }
        node.inputs.remove(at);
        given += 1;
    }
    if given > 0 {
        let node = graph.nodes[index].clone();
        done(graph, &node, format!("{given} constants from outside became its bodies' own"), report);
    }
}

/// Puts the known branch of the If at `index` there; the number of nodes that it has.
fn take_branch(graph: &mut Graph, index: usize) -> Option<usize> {
    let node = graph.nodes[index].clone();
    let Op::If(op) = &node.op else { return None };
    let condition = graph.fact((*node.inputs.first()?)?).ints()?;
    let branch = if *condition.first()? != 0 { &op.then_branch } else { &op.else_branch };
    let outside: Option<Vec<_>> = node.inputs[1..].iter().copied().collect();
    let count = graph.nodes.len();
    let (values, made) = (graph.values.len(), Builder::new(graph).inline(branch, &outside?));
    let added = graph.nodes.split_off(count);
    let inner = made.ok()?;
    // What the branch writes itself takes the outputs' names; what it passes on is another value.
    let own = |value: &crate::ValueId| added.iter().any(|node| node.outputs.contains(value));
    let distinct = inner.iter().enumerate().all(|(at, value)| !inner[..at].contains(value));
    if !distinct || !inner.iter().all(own) {
        graph.values.truncate(values);
        return None;
    }
    let length = added.len();
    graph.nodes.splice(index..index, added);
    for (from, to) in inner.iter().zip(&node.outputs) {
        for value in graph.nodes[index..index + length]
            .iter_mut()
            .flat_map(|node| node.inputs.iter_mut().flatten().chain(node.outputs.iter_mut()).collect::<Vec<_>>())
        {
            if value == from {
                *value = *to;
            }
        }
        graph.values[to.index()].fact = graph.values[from.index()].fact.clone();
    }
    let mut gone = vec![false; graph.nodes.len()];
    gone[index + length] = true;
    remove(graph, &gone);
    Some(length)
}

#[cfg(test)]
mod tests {
    use super::super::tests::{floats, graph, number};
    use super::super::{PassOptions, optimize};
    use crate::ops::{Binary, Contract, If, Loop, Op, Unary};
    use crate::{Builder, Dim, Fact, Graph, ValueId, reference};
    use halimede_tensor::{DType, Tensor, Value};
    use std::sync::Arc;

    /// `silu(x w)` with the sigmoid written out, of `x [2, 3]` and `w [3, 3]` from outside.
    fn branch(negated: bool) -> Arc<Graph> {
        let mut body = Graph::default();
        let sizes = |sizes: [usize; 2]| Fact::tensor(DType::F32, sizes.map(Dim::from));
        let (x, w) = (body.add_value("x", sizes([2, 3])), body.add_value("w", sizes([3, 3])));
        body.inputs = vec![x, w];
        let mut b = Builder::new(&mut body);
        let product = b.add(Op::Contract(Contract::matmul(0)), &[x, w]).unwrap();
        let gate = b.unary(Unary::Sigmoid, product).unwrap();
        let mut y = b.binary(Binary::Mul, product, gate).unwrap();
        if negated {
            y = b.unary(Unary::Neg, y).unwrap();
        }
        body.outputs = vec![y];
        Arc::new(body)
    }

    fn choose(b: &mut Builder, x: ValueId, condition: ValueId) -> ValueId {
        let w = b.constant(floats(&[3, 3], 0.3));
        let op = If { then_branch: branch(false), else_branch: branch(true) };
        b.add(Op::If(op), &[condition, x, w]).unwrap()
    }

    fn same(before: &Graph, after: &Graph) {
        let x = [Value::Tensor(floats(&[2, 3], 1.0))];
        let run = |graph| reference::run(graph, &x).unwrap()[0].tensor().unwrap().to_f32s().unwrap();
        for (a, b) in run(before).into_iter().zip(run(after)) {
            assert!((a - b).abs() <= 1e-5, "{a} became {b}");
        }
    }

    #[test]
    fn bodies_own_their_constants_and_are_rewritten() {
        let model = graph(&[2, 3], |b, x| {
            let sum = b.reduce(crate::ops::ReduceKind::Sum, x, [0, 1], false).unwrap();
            let zero = number(b, 0.0);
            let positive = b.binary(Binary::Less, zero, sum).unwrap();
            choose(b, x, positive)
        });
        let mut after = model.clone();
        let reports = optimize(&mut after, &PassOptions::default());
        same(&model, &after);
        let node = after.nodes.last().unwrap();
        assert_eq!(node.inputs.len(), 2, "the weights are no input any more");
        for body in node.op.bodies() {
            let names: Vec<_> = body.nodes.iter().map(|node| node.op.name()).collect();
            assert_eq!(names, ["Contract"]);
        }
        let activations = reports.iter().find(|report| report.pass == "activations").unwrap();
        assert_eq!(activations.changed, 2);
    }

    #[test]
    fn a_known_condition_leaves_one_branch() {
        let model = graph(&[2, 3], |b, x| {
            let no = b.constant(Tensor::from_bools(&[], &[false]).unwrap());
            let y = choose(b, x, no);
            b.unary(Unary::Exp, y).unwrap()
        });
        let mut after = model.clone();
        optimize(&mut after, &PassOptions::default());
        same(&model, &after);
        assert_eq!(after.nodes.iter().map(|node| node.op.name()).collect::<Vec<_>>(), ["Contract"]);
    }

    #[test]
    fn a_loop_keeps_what_it_carries() {
        // Three times x · w, where x changes and w does not.
        let model = graph(&[2, 3], |b, x| {
            let mut body = Graph::default();
            let value = |body: &mut Graph, name: &str, fact: Fact| body.add_value(name, fact);
            let trip = value(&mut body, "trip", Fact::tensor(DType::I64, []));
            let go = value(&mut body, "go", Fact::tensor(DType::Bool, []));
            let carried = value(&mut body, "x", Fact::tensor(DType::F32, [2, 3].map(|d: usize| Dim::from(d))));
            let w = value(&mut body, "w", Fact::tensor(DType::F32, [3, 3].map(|d: usize| Dim::from(d))));
            body.inputs = vec![trip, go, carried, w];
            let next = Builder::new(&mut body).add(Op::Contract(Contract::matmul(0)), &[carried, w]).unwrap();
            body.outputs = vec![go, next];
            let start = b.unary(Unary::Exp, x).unwrap();
            let weights = b.constant(floats(&[3, 3], 0.3));
            let trips = b.constant(Tensor::scalar(3i64));
            let op = Op::Loop(Loop { body: Arc::new(body), carried: 1 });
            b.add_with_optional(op, &[Some(trips), None, Some(start), Some(weights)]).unwrap()
        });
        let mut after = model.clone();
        optimize(&mut after, &PassOptions::default());
        same(&model, &after);
        let looped = after.nodes.last().unwrap();
        assert_eq!((looped.inputs.len(), looped.op.bodies()[0].inputs.len()), (3, 3));
    }
}
