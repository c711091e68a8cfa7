//! A model in fewer bits is used where it says the same, and only there.

#![allow(clippy::unwrap_used, reason = "a test; its helpers fail with it")]

use halimede_compute::{Budget, CompileOptions, Model, ModelOptions, Precision, Verdict};
use halimede_compute_cpu::{CpuOptions, CpuUnit, Matrix, MatrixChoice};
use halimede_graph::ops::{Binary, Contract, Op};
use halimede_graph::{Builder, Dim, Fact, Graph};
use halimede_tensor::{DType, Tensor, Value};

const WIDTH: usize = 48;

/// `x·A`, or the difference of two such products that is all but lost when they are rounded.
fn graph(delicate: bool) -> Graph {
    let mut graph = Graph::default();
    let x = graph.add_value("x", Fact::tensor(DType::F32, [Dim::symbol("rows"), Dim::from(WIDTH)]));
    graph.inputs = vec![x];
    let mut builder = Builder::new(&mut graph);
    let mut product = |nudge: f32| {
        let weight = |i: usize| ((i * 37) % 101) as f32 * 0.02 - 1.0 + nudge * ((i % 7) as f32 - 3.0);
        let weights: Vec<f32> = (0..WIDTH * WIDTH).map(weight).collect();
        let weights = builder.constant(Tensor::from_slice(&[WIDTH, WIDTH], &weights).unwrap());
        builder.add(Op::Contract(Contract::matmul(0)), &[x, weights]).unwrap()
    };
    let (a, b) = (product(0.0), product(1e-5));
    let y = if delicate { Builder::new(&mut graph).binary(Binary::Sub, a, b).unwrap() } else { a };
    graph.outputs = vec![y];
    graph
}

fn compile(delicate: bool, matrix: MatrixChoice) -> (Model, Option<Verdict>) {
    let unit = CpuUnit::new(&CpuOptions { threads: Some(1), matrix, ..CpuOptions::default() });
    let options =
        ModelOptions { compile: CompileOptions { precision: Precision::Balanced }, ..ModelOptions::default() };
    Model::compile_guarded(graph(delicate), &unit, &options, &Budget::default()).unwrap()
}

fn answer(model: &Model) -> Vec<f64> {
    let numbers: Vec<f32> = (0..3 * WIDTH).map(|i| (i % 13) as f32 * 0.1 - 0.6).collect();
    let mut session = model.session();
    session.run(&[Value::from(Tensor::from_slice(&[3, WIDTH], &numbers).unwrap())]).unwrap();
    session.take_outputs().unwrap()[0].tensor().unwrap().to_f64s().unwrap()
}

#[test]
fn fewer_bits_where_they_do_no_harm() {
    let some = MatrixChoice::Only(Matrix::available().last().copied().unwrap_or(Matrix::PORTABLE));
    for delicate in [false, true] {
        let (model, verdict) = compile(delicate, some);
        let (exact, same) = compile(delicate, MatrixChoice::None);
        assert!(matches!(same, Some(Verdict::Within(differences)) if differences[0].cosine > 0.999_999_9));
        match verdict {
            Some(Verdict::Within(differences)) => {
                assert!(!delicate && differences[0].cosine > 0.999, "{differences:?}");
                assert_ne!(answer(&model), answer(&exact));
            }
            Some(Verdict::Beyond(differences)) => {
                assert!(delicate, "{differences:?}");
                assert_eq!(answer(&model), answer(&exact));
            }
            other => panic!("{other:?}"),
        }
    }
}
