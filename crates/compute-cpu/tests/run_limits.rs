//! Runs that are given up: cancelled ones, and those that want more memory than there is.

#![allow(clippy::unwrap_used, reason = "a test; its helpers fail with it")]

use halimede_compute::{ComputeUnit, Model, ModelOptions, RunError, Session};
use halimede_compute_cpu::{CpuOptions, CpuUnit};
use halimede_graph::ops::{Concat, Contract, Expand, Factors, Loop, Op};
use halimede_graph::{Dim, Fact, Graph};
use halimede_tensor::{DType, Tensor, Value};
use std::cell::Cell;
use std::sync::Arc;

const BYTES_MAX: usize = 1 << 16;

fn session(graph: Graph) -> Session {
    let unit = CpuUnit::new(&CpuOptions { threads: Some(1), bytes_max: Some(BYTES_MAX), ..CpuOptions::default() });
    let unit: &dyn ComputeUnit = &unit;
    Model::compile(graph, unit, &ModelOptions::default()).unwrap().session()
}

/// A node over all inputs of the graph, whose one output is the graph's.
fn add(graph: &mut Graph, op: Op, inputs: &[halimede_graph::ValueId]) -> halimede_graph::ValueId {
    let mut builder = halimede_graph::Builder::new(graph);
    let inputs: Vec<_> = inputs.iter().copied().map(Some).collect();
    builder.at("n", "test").add_all(op, &inputs).unwrap()[0]
}

fn input(graph: &mut Graph, name: &str, fact: Fact) -> halimede_graph::ValueId {
    let value = graph.add_value(name, fact);
    graph.inputs.push(value);
    value
}

/// Expands a number to the shape that the request gives.
fn expanding() -> Graph {
    let mut graph = Graph::default();
    let x = input(&mut graph, "x", Fact::tensor(DType::F32, []));
    let shape = input(&mut graph, "shape", Fact::tensor(DType::I64, [Dim::from(2usize)]));
    let y = add(&mut graph, Op::Expand(Expand), &[x, shape]);
    graph.outputs.push(y);
    graph
}

/// A loop that the request ends by its trip count; its value doubles where `grows`.
fn looping(grows: bool) -> Graph {
    let mut body = Graph::default();
    input(&mut body, "i", Fact::tensor(DType::I64, []));
    let condition = input(&mut body, "c", Fact::tensor(DType::Bool, []));
    let v = input(&mut body, "v", Fact::tensor(DType::F32, [Dim::symbol("n")]));
    let w = if grows { add(&mut body, Op::Concat(Concat { axis: 0 }), &[v, v]) } else { v };
    body.outputs = vec![condition, w];
    let mut graph = Graph::default();
    let trips = input(&mut graph, "trips", Fact::tensor(DType::I64, []));
    let x = input(&mut graph, "x", Fact::tensor(DType::F32, [Dim::from(2usize)]));
    let truth = graph.add_constant("t", Tensor::from_bools(&[], &[true]).unwrap());
    let y = add(&mut graph, Op::Loop(Loop { body: Arc::new(body), carried: 1 }), &[trips, truth, x]);
    graph.outputs.push(y);
    graph
}

fn shape(sizes: [i64; 2]) -> [Value; 2] {
    [Tensor::scalar(1f32).into(), Tensor::from_slice(&[2], &sizes).unwrap().into()]
}

fn trips(count: i64) -> [Value; 2] {
    [Tensor::scalar(count).into(), Tensor::from_slice(&[2], &[1f32, 2.0]).unwrap().into()]
}

#[test]
fn a_shape_from_data_cannot_take_all_memory() {
    let mut session = session(expanding());
    session.run(&shape([64, 128])).unwrap();
    for sizes in [[128, 128], [1 << 20, 1 << 20], [1 << 40, 1 << 40]] {
        let error = session.run(&shape(sizes)).unwrap_err();
        assert!(matches!(error, RunError::Memory { bytes_max: BYTES_MAX, .. }), "{sizes:?}: {error}");
    }
    session.run(&shape([1, 2])).unwrap();
}

#[test]
fn a_loop_cannot_grow_for_ever() {
    let mut session = session(looping(true));
    session.run(&trips(10)).unwrap();
    let error = session.run(&trips(i64::MAX - 1)).unwrap_err();
    assert!(matches!(error, RunError::Memory { .. }), "{error}");
    assert!(error.to_string().ends_with("65536 is all there is"), "{error}");
}

/// A loop of so many iterations as the request says that keeps a tensor without elements of each.
fn keeping_nothing() -> Graph {
    let mut body = Graph::default();
    input(&mut body, "i", Fact::tensor(DType::I64, []));
    let condition = input(&mut body, "c", Fact::tensor(DType::Bool, []));
    let v = input(&mut body, "v", Fact::tensor(DType::F32, [Dim::from(0usize)]));
    let w = add(&mut body, Op::Concat(Concat { axis: 0 }), &[v, v]);
    body.outputs = vec![condition, v, w];
    let mut graph = Graph::default();
    let trips = input(&mut graph, "trips", Fact::tensor(DType::I64, []));
    let x = input(&mut graph, "x", Fact::tensor(DType::F32, [Dim::from(0usize)]));
    let truth = graph.add_constant("t", Tensor::from_bools(&[], &[true]).unwrap());
    let inputs = [trips, truth, x].map(Some);
    let op = Op::Loop(Loop { body: Arc::new(body), carried: 1 });
    let made = halimede_graph::Builder::new(&mut graph).at("n", "test").add_all(op, &inputs).unwrap();
    graph.outputs.push(made[1]);
    graph
}

#[test]
fn what_a_loop_keeps_counts_where_it_has_no_elements() {
    let mut session = session(keeping_nothing());
    let given = |trips: i64| [Tensor::scalar(trips).into(), Tensor::from_slice::<f32>(&[0], &[]).unwrap().into()];
    session.run(&given(50)).unwrap();
    let error = session.run(&given(i64::MAX - 1)).unwrap_err();
    assert!(matches!(error, RunError::Memory { .. }), "{error}");
}

#[test]
fn weights_without_elements_are_not_packed_column_by_column() {
    let columns = 1 << 40;
    for multiply in [None, Some(Factors::Bf16)] {
        let mut graph = Graph::default();
        let x = input(&mut graph, "x", Fact::tensor(DType::F32, [Dim::symbol("m"), Dim::from(0usize)]));
        let weights = graph.add_constant("w", Tensor::zeros(DType::F32, &[0, columns]).unwrap());
        let product = add(&mut graph, Op::Contract(Contract { multiply, ..Contract::matmul(0) }), &[x, weights]);
        graph.outputs.push(product);
        let mut session = session(graph);
        session.run(&[Tensor::zeros(DType::F32, &[0, 0]).unwrap().into()]).unwrap();
        assert_eq!(session.output(0).unwrap().0.shape[..], [0, columns]);
    }
}

#[test]
fn a_loop_without_end_is_refused_and_a_long_one_can_be_cancelled() {
    let mut session = session(looping(false));
    session.run(&trips(1000)).unwrap();
    let error = session.run(&trips(i64::MAX)).unwrap_err();
    assert!(error.to_string().contains("would not end"), "{error}");
    let asked = Cell::new(0);
    let is_cancelled = || asked.replace(asked.get() + 1) == 5000;
    let error = session.run_watched(&trips(i64::MAX - 1), &is_cancelled).unwrap_err();
    assert!(matches!(error, RunError::Cancelled), "{error}");
    assert_eq!(asked.get(), 5001);
    session.run(&trips(3)).unwrap();
}
