//! Whatever is chosen, a kernel computes what its operator's definition says.

use super::tests::{compare, conv, floats, machines};
use super::{Kernels, Machine};
use halimede_compute::packed::Packer;
use halimede_compute::tuning::Config;
use halimede_compute::{Executable, Program, Session};
use halimede_graph::ops::*;
use halimede_graph::{Builder, Fact, Graph, Op};
use halimede_tensor::{DType, Tensor, Value};
use std::collections::BTreeSet;
use std::sync::Arc;

/// A program of one operation with constant weights, and its session after a run.
fn ran(op: &Op, inputs: &[Tensor; 2], machine: &Machine) -> Session {
    let mut graph = Graph::default();
    let shape = inputs[0].shape().iter().map(|&size| size.into());
    let x = graph.add_value("x", Fact::tensor(inputs[0].dtype(), shape));
    let w = graph.add_constant("w", inputs[1].clone());
    graph.inputs = vec![x];
    graph.outputs = Builder::new(&mut graph).add_all(op.clone(), &[Some(x), Some(w)]).unwrap().to_vec();
    let kernels: Arc<dyn halimede_compute::Kernels> = Arc::new(Kernels::new(machine.clone()));
    let mut session = Arc::new(Program::new(graph, &kernels, usize::MAX, &Packer::default()).unwrap()).session();
    session.run(&[Value::from(inputs[0].clone())]).unwrap();
    assert_eq!(session.coverage().reference, 0, "{op:?} ran by its definition");
    session
}

/// Runs every configuration of an operation on every machine; gives all of them.
fn check(op: Op, inputs: [Tensor; 2], tolerance: f32) -> BTreeSet<Config> {
    let values = inputs.clone().map(|input| Some(Value::from(input)));
    let expected = op.evaluate(&values).unwrap();
    let mut seen = BTreeSet::new();
    // The system's library leaves nothing to choose.
    for machine in machines(&op).into_iter().filter(|machine| machine.blas.is_none()) {
        let parts = ran(&op, &inputs, &machine).parts();
        let [part] = &parts[..] else { panic!("{op:?} has {} parts", parts.len()) };
        assert_eq!(part.steps, [0]);
        for config in part.tunable.space.configs() {
            machine.choices.set(part.operator(), Some(config.clone()));
            let mut session = ran(&op, &inputs, &machine);
            let step = &session.steps()[0];
            assert_eq!(step.chosen.as_ref(), Some(&config), "{op:?}");
            let is_winograd = step.kernel.contains("Winograd");
            assert_eq!(is_winograd, matches!(config.word("algorithm"), Some("f2" | "f4")), "{config}: {}", step.kernel);
            let cost = (part.tunable.cost)(&config);
            assert!(cost.is_finite() && cost > 0.0, "{config} costs {cost}");
            let made = session.take_outputs().unwrap();
            let place = format!("{} on {} with {config}", part.operator(), machine.isa.name());
            compare(&op, &place, made[0].tensor().unwrap(), expected[0].tensor().unwrap(), tolerance);
            seen.insert(config);
        }
        // What the part becomes by itself is the same step.
        let mut alone = part.session().unwrap();
        alone.run(&part.inputs().unwrap()).unwrap();
        assert_eq!(alone.steps()[0].chosen, part.tunable.space.configs().last());
        machine.choices.set(part.operator(), None);
    }
    seen
}

fn matmul(multiply: Option<Factors>) -> Op {
    Op::Contract(Contract { multiply, ..Contract::matmul(0) })
}

#[test]
fn products_under_every_choice() {
    let seen = check(matmul(None), [floats(&[110, 70], 1), floats(&[70, 300], 2)], 3e-6);
    assert!(seen.contains(&"panels=4 rows=48".parse().unwrap()), "{seen:?}");
    assert!(seen.contains(&"panels=8 rows=192 threads=1".parse().unwrap()), "{seen:?}");
    let seen = check(matmul(Some(Factors::Bf16)), [floats(&[110, 70], 1), floats(&[70, 50], 2)], 2e-2);
    assert!(seen.contains(&"rows=64".parse().unwrap()), "{seen:?}");
    let bytes = |shape: &[usize]| {
        let numbers: Vec<i64> = (0..shape.iter().product::<usize>() as i64).map(|i| i * 37 % 100 - 50).collect();
        Tensor::from_i64s(DType::I8, shape, &numbers).unwrap()
    };
    check(matmul(Some(Factors::Integers)), [bytes(&[110, 70]), bytes(&[70, 50])], 0.0);
}

#[test]
fn convolutions_under_every_choice() {
    let plain = |multiply| Op::Conv(Conv { channels_last: true, multiply, ..conv(&[1, 1], &[1, 1], &[1; 4], 1) });
    let inputs = || [floats(&[1, 13, 17, 40], 1), floats(&[35, 40, 3, 3], 2)];
    let seen = check(plain(None), inputs(), 1e-5);
    for config in ["algorithm=direct depth=256 pixels=96", "algorithm=f2 kib=256", "algorithm=f4 kib=1024 threads=3"] {
        assert!(seen.contains(&config.parse().unwrap()), "{config} of {seen:?}");
    }
    let seen = check(plain(Some(Factors::Bf16)), inputs(), 2e-2);
    assert!(seen.contains(&"rows=3".parse().unwrap()) && seen.contains(&"rows=13".parse().unwrap()), "{seen:?}");
    let strided = Op::Conv(Conv { channels_last: true, ..conv(&[2, 2], &[1, 1], &[1; 4], 1) });
    let seen = check(strided, inputs(), 3e-6);
    assert!(seen.iter().all(|config| config.word("algorithm") == Some("direct")), "{seen:?}");
}

#[test]
fn what_a_kernel_does_not_have_is_no_choice() {
    let (op, inputs) = (matmul(None), [floats(&[110, 70], 1), floats(&[70, 300], 2)]);
    let machine = machines(&op).remove(0);
    let operator = ran(&op, &inputs, &machine).parts()[0].operator().clone();
    for wrong in ["rows=0", "rows=48", "panels=4 rows=47", "algorithm=direct", "panels=4 rows=48 other=1"] {
        machine.choices.set(&operator, Some(wrong.parse().unwrap()));
        assert_eq!(ran(&op, &inputs, &machine).steps()[0].chosen, None, "{wrong}");
    }
}
