//! What follows from shapes alone is worked out once for all runs.

#![allow(clippy::unwrap_used, reason = "a test; its helpers fail with it")]

use halimede_compute::{Model, ModelOptions, Precision};
use halimede_compute_cpu::{CpuOptions, CpuUnit};
use halimede_graph::ops::{Binary, Op, Range, ShapeOf};
use halimede_graph::{Builder, Dim, Fact, Graph, reference};
use halimede_tensor::{DType, Tensor, Value};

/// How far each row is from each column, and what is given: `x + |row - column|`.
fn graph() -> Graph {
    let mut graph = Graph::default();
    let length = || Dim::symbol("length");
    let x = graph.add_value("x", Fact::tensor(DType::F32, [length(), length()]));
    graph.inputs = vec![x];
    let mut builder = Builder::new(&mut graph);
    let shape = builder.add(Op::ShapeOf(ShapeOf { start: 0, end: Some(1) }), &[x]).unwrap();
    let length = builder.reshape(shape, &[]).unwrap();
    let [zero, one] = [0, 1].map(|number| builder.constant(Tensor::from_slice(&[], &[number as i64]).unwrap()));
    let columns = builder.add(Op::Range(Range), &[zero, length, one]).unwrap();
    let rows = builder.reshape(columns, &[-1, 1]).unwrap();
    let apart = builder.binary(Binary::Sub, rows, columns).unwrap();
    let apart = builder.cast(apart, DType::F32).unwrap();
    let squares = builder.binary(Binary::Mul, apart, apart).unwrap();
    let sum = builder.binary(Binary::Add, x, squares).unwrap();
    graph.outputs = vec![sum];
    graph
}

#[test]
fn values_of_shapes_alone_are_no_steps() {
    let unit = CpuUnit::new(&CpuOptions { threads: Some(1), ..CpuOptions::default() });
    let options = ModelOptions { passes: None, compile: Precision::Exact.into() };
    let model = Model::compile(graph(), &unit, &options).unwrap();
    let mut session = model.session();
    // What would take too much memory is worked out in every run.
    for (length, is_known) in [(3, true), (128, true), (600, false), (128, true), (0, true)] {
        let numbers: Vec<f32> = (0..length * length).map(|i| i as f32).collect();
        let inputs = [Value::Tensor(Tensor::from_slice(&[length, length], &numbers).unwrap())];
        session.run(&inputs).unwrap();
        let operators: Vec<String> = session.steps().into_iter().map(|step| step.operator).collect();
        assert_eq!(operators.len() == 1, is_known, "{length}: {operators:?}");
        let made = session.take_outputs().unwrap();
        let expected = reference::run(&graph(), &inputs).unwrap();
        assert_eq!(made[0].tensor().unwrap(), expected[0].tensor().unwrap(), "{length}");
    }
    // What was worked out on the way to it is not kept.
    let before = model.footprint().plans;
    let numbers = vec![0f32; 200 * 200];
    session.run(&[Value::Tensor(Tensor::from_slice(&[200, 200], &numbers).unwrap())]).unwrap();
    let more = model.footprint().plans - before;
    let table = 200 * 200 * size_of::<f32>();
    assert!((table..2 * table).contains(&more), "{more} bytes for a table of {table}");
}
