//! A model in fewer bits is used where it says the same, and only there.

#![allow(clippy::unwrap_used, reason = "a test; its helpers fail with it")]

use halimede_compute::{Model, ModelOptions, Precision, Verdict};
use halimede_compute_cpu::{CpuOptions, CpuUnit, Matrix, MatrixChoice};
use halimede_graph::ops::{Binary, Contract, Op, Unary};
use halimede_graph::{Builder, Dim, Fact, Graph};
use halimede_tensor::{DType, Tensor, Value};

const WIDTH: usize = 48;

/// What a model gives back: `x·A`, the difference of two such products that is all but lost when they are
/// rounded, or both.
#[derive(Clone, Copy, PartialEq)]
enum Outputs {
    Plain,
    Delicate,
    Both,
    /// The first, of the input as it comes.
    Raw,
}

fn graph(outputs: Outputs) -> Graph {
    let mut graph = Graph::default();
    let x = graph.add_value("x", Fact::tensor(DType::F32, [Dim::symbol("rows"), Dim::from(WIDTH)]));
    graph.inputs = vec![x];
    let mut builder = Builder::new(&mut graph);
    // What multiplies inputs as they come stays exact: the products are of something else.
    let x = if outputs == Outputs::Raw { x } else { builder.unary(Unary::Tanh, x).unwrap() };
    let mut product = |name: &str, nudge: f32| {
        let weight = |i: usize| ((i * 37) % 101) as f32 * 0.02 - 1.0 + nudge * ((i % 7) as f32 - 3.0);
        let weights: Vec<f32> = (0..WIDTH * WIDTH).map(weight).collect();
        let weights = builder.constant(Tensor::from_slice(&[WIDTH, WIDTH], &weights).unwrap());
        builder.at(name, "MatMul").add(Op::Contract(Contract::matmul(0)), &[x, weights]).unwrap()
    };
    let mut given = Vec::new();
    if outputs != Outputs::Delicate {
        given.push(product("plain", 0.5));
    }
    if !matches!(outputs, Outputs::Plain | Outputs::Raw) {
        let (a, b) = (product("left", 0.0), product("right", 1e-5));
        given.push(builder.binary(Binary::Sub, a, b).unwrap());
    }
    graph.outputs = given;
    graph
}

fn compile(outputs: Outputs, matrix: MatrixChoice) -> (Model, Option<Verdict>) {
    let unit = CpuUnit::new(&CpuOptions { threads: Some(1), matrix, ..CpuOptions::default() });
    let options = ModelOptions { compile: Precision::Balanced.into(), ..ModelOptions::default() };
    Model::compile_guarded(graph(outputs), &unit, &options, Vec::new()).unwrap()
}

fn some_matrix() -> MatrixChoice {
    MatrixChoice::Only(Matrix::available().last().copied().unwrap_or(Matrix::PORTABLE))
}

fn answer(model: &Model) -> Vec<f64> {
    let numbers: Vec<f32> = (0..3 * WIDTH).map(|i| (i % 13) as f32 * 0.1 - 0.6).collect();
    let mut session = model.session();
    session.run(&[Value::from(Tensor::from_slice(&[3, WIDTH], &numbers).unwrap())]).unwrap();
    session.take_outputs().unwrap()[0].tensor().unwrap().to_f64s().unwrap()
}

#[test]
fn fewer_bits_where_they_do_no_harm() {
    let (model, verdict) = compile(Outputs::Plain, some_matrix());
    let (exact, same) = compile(Outputs::Plain, MatrixChoice::None);
    assert_eq!(same, Some(Verdict::Same));
    let Some(Verdict::Within { exact_nodes, differences }) = verdict else { panic!("{verdict:?}") };
    assert!(exact_nodes.is_empty() && differences[0].cosine > 0.999, "{exact_nodes:?} {differences:?}");
    assert_ne!(answer(&model), answer(&exact));
}

#[test]
fn a_model_that_rounding_ruins_stays_exact() {
    let (model, verdict) = compile(Outputs::Delicate, some_matrix());
    assert!(matches!(verdict, Some(Verdict::Beyond(_))), "{verdict:?}");
    assert_eq!(answer(&model), answer(&compile(Outputs::Delicate, MatrixChoice::None).0));
}

#[test]
fn only_what_does_harm_stays_exact() {
    let (model, verdict) = compile(Outputs::Both, some_matrix());
    let Some(Verdict::Within { exact_nodes, differences }) = verdict else { panic!("{verdict:?}") };
    assert_eq!(exact_nodes, ["left", "right"].map(str::to_owned).into());
    assert!(differences.iter().all(|difference| difference.cosine >= 0.999), "{differences:?}");
    assert_eq!(model.reduced(), ["plain"]);
}

#[test]
fn what_multiplies_inputs_stays_exact_without_samples() {
    assert_eq!(compile(Outputs::Raw, some_matrix()).1, Some(Verdict::Same));
}

#[test]
fn samples_are_what_is_compared() {
    let unit = CpuUnit::new(&CpuOptions { threads: Some(1), matrix: some_matrix(), ..CpuOptions::default() });
    let options = ModelOptions { compile: Precision::Balanced.into(), ..ModelOptions::default() };
    // Zeros differ nowhere.
    let zeros = Value::from(Tensor::zeros(DType::F32, &[2, WIDTH]).unwrap());
    let samples = vec![vec![zeros]];
    let (_, verdict) = Model::compile_guarded(graph(Outputs::Delicate), &unit, &options, samples).unwrap();
    assert!(matches!(verdict, Some(Verdict::Within { .. })), "{verdict:?}");
}
