//! What a model says of its memory is what it holds.

#![allow(clippy::unwrap_used, reason = "a test; its helpers fail with it")]

use halimede_compute::{Footprint, Model, ModelOptions, Precision};
use halimede_compute_cpu::{CpuOptions, CpuUnit, Matrix, MatrixChoice};
use halimede_graph::ops::{Contract, Gather, Op};
use halimede_graph::{Builder, Dim, Fact, Graph};
use halimede_tensor::{Buffer, DType, Held, Tensor, Value};

/// Sizes that need no padding in any layout of panels.
const WORDS: usize = 96;
const WIDTH: usize = 256;

/// Weights that lie in somebody else's memory, as those of a mapped file do, and as there where no f32 may.
fn weights(rows: usize) -> Tensor {
    let numbers = (0..rows * WIDTH).flat_map(|i| ((i % 19) as f32 * 0.1 - 0.9).to_ne_bytes());
    let file = Buffer::foreign([0; 8].into_iter().chain(numbers).collect::<Vec<u8>>());
    let offset = if file.as_ptr().addr().is_multiple_of(4) { 1 } else { 0 };
    let bytes = file.part(offset, rows * WIDTH * 4).unwrap();
    Tensor::from_buffer(DType::F32, &[rows, WIDTH], bytes).unwrap()
}

/// Rows of a table by the indices that are given, multiplied by weights: once, or by the table itself too.
fn graph(tied: bool) -> Graph {
    let mut graph = Graph::default();
    let words = graph.add_value("words", Fact::tensor(DType::I64, [Dim::symbol("words")]));
    graph.inputs = vec![words];
    let mut builder = Builder::new(&mut graph);
    let table = builder.constant(weights(WORDS));
    let square = builder.constant(weights(WIDTH));
    let rows = builder.add(Op::Gather(Gather { axis: 0 }), &[table, words]).unwrap();
    let product = builder.add(Op::Contract(Contract::matmul(0)), &[rows, square]).unwrap();
    let mut outputs = vec![product];
    if tied {
        let transposed = Contract { rhs: [1u8, 2].into_iter().collect(), ..Contract::matmul(0) };
        outputs.push(builder.add(Op::Contract(transposed), &[product, table]).unwrap());
    }
    graph.outputs = outputs;
    graph
}

fn model(graph: Graph, precision: Precision) -> Model {
    Model::compile(graph, &unit(), &ModelOptions { passes: None, compile: precision.into() }).unwrap()
}

fn unit() -> CpuUnit {
    let matrix = MatrixChoice::Only(Matrix::PORTABLE);
    CpuUnit::new(&CpuOptions { threads: Some(1), matrix: matrix.into(), ..CpuOptions::default() })
}

#[test]
fn every_byte_of_weights_is_told_once() {
    let (table, square) = (WORDS * WIDTH * 4, WIDTH * WIDTH * 4);
    let footprint = model(graph(false), Precision::Exact).footprint();
    let expected = Footprint {
        weights: table + square,
        packed: Held { private: square, mapped: 0 },
        // Copied out of the file, which may be written over.
        constants: Held { private: table, mapped: 0 },
        sources: Held { private: 0, mapped: table + square },
        plans: 0,
    };
    assert_eq!(footprint, expected);
    let tied = model(graph(true), Precision::Exact).footprint();
    let packed = Held { private: square + table, mapped: 0 };
    assert_eq!(tied, Footprint { packed, ..expected });
}

#[test]
fn weights_of_16_bits_are_half() {
    let (table, square) = (WORDS * WIDTH * 4, WIDTH * WIDTH * 2);
    let footprint = model(graph(false), Precision::Balanced).footprint();
    assert_eq!((footprint.weights, footprint.packed.total()), (table + square, square));
    // A table that is read in f32 and multiplied in bf16 is needed twice.
    let tied = model(graph(true), Precision::Balanced).footprint();
    assert_eq!((tied.weights, tied.packed.total()), (table + square + table / 2, square + table / 2));
}

#[test]
fn sessions_and_plans_count_by_themselves() {
    let model = model(graph(false), Precision::Exact);
    let mut session = model.session();
    assert_eq!((session.memory_bytes(), model.footprint().plans), (0, 0));
    for count in [1, 4] {
        let words: Vec<i64> = (0..count as i64).collect();
        session.run(&[Value::from(Tensor::from_slice(&[count], &words).unwrap())]).unwrap();
        assert!(session.memory_bytes() >= session.arena_bytes() + count * WIDTH * 4);
    }
    assert!(model.footprint().plans > 0);
}
