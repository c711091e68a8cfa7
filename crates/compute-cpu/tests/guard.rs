//! A model in fewer bits is used where it says the same, and only there.

#![allow(clippy::unwrap_used, reason = "a test; its helpers fail with it")]

use halimede_compute::{CompileOptions, Model, ModelOptions, Precision, Verdict};
use halimede_compute_cpu::{CpuOptions, CpuUnit, HalfMatrix, Matrix, MatrixChoice};
use halimede_graph::ops::{Binary, Contract, Op, Unary};
use halimede_graph::{Builder, Dim, Fact, Graph};
use halimede_tensor::{DType, Tensor, Value};

const WIDTH: usize = 256;

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
    compile_in(Precision::Balanced, graph(outputs), matrix, Vec::new())
}

fn compile_in(
    precision: Precision,
    graph: Graph,
    matrix: MatrixChoice,
    samples: Vec<Vec<Value>>,
) -> (Model, Option<Verdict>) {
    let unit = CpuUnit::new(&CpuOptions { threads: Some(1), matrix: matrix.into(), ..CpuOptions::default() });
    let options = ModelOptions { compile: precision.into(), ..ModelOptions::default() };
    Model::compile_guarded(graph, &unit, &options, samples).unwrap()
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
    let Some(Verdict::Within { options, differences, .. }) = verdict else { panic!("{verdict:?}") };
    assert!(options.exact_nodes.is_empty() && differences[0].cosine > 0.999, "{options:?} {differences:?}");
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
    let Some(Verdict::Within { options, differences, .. }) = verdict else { panic!("{verdict:?}") };
    assert_eq!(options.exact_nodes, ["left", "right"].map(str::to_owned).into());
    assert!(differences.iter().all(|difference| difference.cosine >= 0.999), "{differences:?}");
    assert_eq!(model.reduced(), ["plain"]);
}

/// On machines that multiply f16 and no bf16.
fn halves() -> MatrixChoice {
    MatrixChoice::OnlyHalves(HalfMatrix::available().last().copied().unwrap_or(HalfMatrix::PORTABLE))
}

#[test]
fn products_of_f16_where_they_do_no_harm() {
    let (model, verdict) = compile(Outputs::Both, halves());
    let Some(Verdict::Within { options, differences, .. }) = verdict else { panic!("{verdict:?}") };
    assert_eq!(options.exact_nodes, ["left", "right"].map(str::to_owned).into());
    assert!(differences.iter().all(|difference| difference.cosine >= 0.999), "{differences:?}");
    assert_eq!(model.reduced(), ["plain"]);
    assert_ne!(answer(&model), answer(&compile(Outputs::Both, MatrixChoice::None).0));
}

/// A product of data or of weights beyond the largest number of f16, and one beside it that is not.
fn beyond_f16(data: f32, weights: f32) -> Graph {
    let mut graph = Graph::default();
    let x = graph.add_value("x", Fact::tensor(DType::F32, [Dim::symbol("rows"), Dim::from(WIDTH)]));
    graph.inputs = vec![x];
    let mut builder = Builder::new(&mut graph);
    let x = builder.unary(Unary::Tanh, x).unwrap();
    let factor = builder.constant(Tensor::scalar(data));
    let large = builder.binary(Binary::Mul, x, factor).unwrap();
    let mut product = |name: &str, x, factor: f32| {
        let numbers: Vec<f32> = (0..WIDTH * WIDTH).map(|i| (((i * 37) % 101) as f32 * 0.02 - 1.0) * factor).collect();
        let numbers = builder.constant(Tensor::from_slice(&[WIDTH, WIDTH], &numbers).unwrap());
        builder.at(name, "MatMul").add(Op::Contract(Contract::matmul(0)), &[x, numbers]).unwrap()
    };
    graph.outputs = vec![product("large", large, weights), product("plain", x, 1.0)];
    graph
}

#[test]
fn what_is_beyond_f16_stays_exact() {
    for (data, weights) in [(1e7, 1.0), (1.0, 1e7)] {
        let (model, verdict) = compile_in(Precision::Balanced, beyond_f16(data, weights), halves(), Vec::new());
        let Some(Verdict::Within { options, .. }) = verdict else { panic!("{verdict:?}") };
        // Weights are known before anything runs; data are seen by the guard.
        let demoted: &[&str] = if data > 1.0 { &["large"] } else { &[] };
        assert_eq!(options.exact_nodes.iter().map(String::as_str).collect::<Vec<_>>(), demoted);
        assert_eq!(model.reduced(), ["plain"]);
        assert!(answer(&model).iter().all(|number| number.is_finite()));
    }
}

#[test]
fn what_multiplies_inputs_stays_exact_without_samples() {
    assert_eq!(compile(Outputs::Raw, some_matrix()).1, Some(Verdict::Same));
}

#[test]
fn samples_are_what_is_compared() {
    let unit = CpuUnit::new(&CpuOptions { threads: Some(1), matrix: some_matrix().into(), ..CpuOptions::default() });
    let options = ModelOptions { compile: Precision::Balanced.into(), ..ModelOptions::default() };
    // Zeros differ nowhere.
    let zeros = Value::from(Tensor::zeros(DType::F32, &[2, WIDTH]).unwrap());
    let samples = vec![vec![zeros]];
    let (_, verdict) = Model::compile_guarded(graph(Outputs::Delicate), &unit, &options, samples).unwrap();
    assert!(matches!(verdict, Some(Verdict::Within { .. })), "{verdict:?}");
}

/// A product of the logarithm of `x + offset`, and where `is_finite_too` one of `x + offset` itself.
fn logarithm(offset: f32, is_finite_too: bool) -> Graph {
    let mut graph = Graph::default();
    let x = graph.add_value("x", Fact::tensor(DType::F32, [Dim::symbol("rows"), Dim::from(WIDTH)]));
    graph.inputs = vec![x];
    let mut builder = Builder::new(&mut graph);
    let offset = builder.constant(Tensor::scalar(offset));
    let shifted = builder.binary(Binary::Add, x, offset).unwrap();
    let logarithm = builder.unary(Unary::Log, shifted).unwrap();
    let weights: Vec<f32> = (0..WIDTH * WIDTH).map(|i| ((i * 37) % 101) as f32 * 0.02 - 1.0).collect();
    let weights = builder.constant(Tensor::from_slice(&[WIDTH, WIDTH], &weights).unwrap());
    let mut product =
        |name: &str, x| builder.at(name, "MatMul").add(Op::Contract(Contract::matmul(0)), &[x, weights]).unwrap();
    let given = product("of the logarithm", logarithm);
    graph.outputs = if is_finite_too { vec![product("finite", shifted), given] } else { vec![given] };
    graph
}

#[test]
fn what_has_no_finite_number_is_not_compared() {
    let reason = |graph, precision, samples: Vec<Vec<Value>>| {
        let (model, verdict) = compile_in(precision, graph, some_matrix(), samples);
        assert!(model.reduced().is_empty());
        let Some(Verdict::Untested(reason)) = verdict else { panic!("{verdict:?}") };
        reason
    };
    for precision in [Precision::Balanced, Precision::Fast] {
        // Of numbers around -1000 there is no logarithm, in no range that is tried.
        for is_finite_too in [false, true] {
            let made_up = reason(logarithm(-1000.0, is_finite_too), precision, Vec::new());
            assert!(made_up.contains("has no finite number for made-up inputs: give samples"), "{made_up}");
        }
        let given = reason(logarithm(-1000.0, false), precision, samples());
        assert!(given.contains("has no finite number in any sample: give samples"), "{given}");
    }
}

#[test]
fn made_up_inputs_are_tried_where_there_is_a_logarithm() {
    for precision in [Precision::Balanced, Precision::Fast] {
        let (_, verdict) = compile_in(precision, logarithm(0.0, false), some_matrix(), Vec::new());
        let Some(Verdict::Within { differences, .. }) = verdict else { panic!("{verdict:?}") };
        assert!(differences[0].cosine > 0.99 && differences[0].largest > 0.0, "{differences:?}");
    }
}

#[test]
fn a_sample_without_finite_numbers_hides_no_other() {
    let nans = vec![Value::from(Tensor::from_slice(&[3, WIDTH], &[f32::NAN; 3 * WIDTH]).unwrap())];
    let good = vec![Value::from(Tensor::from_slice(&[3, WIDTH], &[0.3f32; 3 * WIDTH]).unwrap())];
    for samples in [vec![nans.clone(), good.clone()], vec![good, nans]] {
        let (_, verdict) = compile_in(Precision::Balanced, graph(Outputs::Delicate), some_matrix(), samples);
        assert!(matches!(verdict, Some(Verdict::Beyond(_))), "{verdict:?}");
    }
}

/// Two products of `tanh(x)`, or where `is_uneven` the second one of what has values of very different sizes: the
/// channel that is read lies within one step of 8 bits, and within the first bits of bf16.
fn layers(is_uneven: bool) -> Graph {
    let mut graph = Graph::default();
    let x = graph.add_value("x", Fact::tensor(DType::F32, [Dim::symbol("rows"), Dim::from(WIDTH)]));
    graph.inputs = vec![x];
    let mut builder = Builder::new(&mut graph);
    let x = builder.unary(Unary::Tanh, x).unwrap();
    let weight = |i: usize| ((i * 37) % 101) as f32 * 0.02 - 1.0;
    let mut product = |name: &str, x, weights: &[f32]| {
        let weights = builder.constant(Tensor::from_slice(&[WIDTH, WIDTH], weights).unwrap());
        builder.at(name, "MatMul").add(Op::Contract(Contract::matmul(0)), &[x, weights]).unwrap()
    };
    let weights: Vec<f32> = (0..WIDTH * WIDTH).map(weight).collect();
    let first = product("first", x, &weights);
    let second = if is_uneven {
        // One row of ten thousands, which a weight of 0 leaves out.
        let rows: Vec<f32> = (0..WIDTH).map(|row| if row == 0 { 1e4 } else { 1.0 }).collect();
        let rows = builder.constant(Tensor::from_slice(&[WIDTH], &rows).unwrap());
        let uneven = builder.binary(Binary::Mul, first, rows).unwrap();
        let weights: Vec<f32> = weights.iter().enumerate().map(|(i, &w)| if i < WIDTH { 0.0 } else { w }).collect();
        let weights = builder.constant(Tensor::from_slice(&[WIDTH, WIDTH], &weights).unwrap());
        builder.at("second", "MatMul").add(Op::Contract(Contract::matmul(0)), &[uneven, weights]).unwrap()
    } else {
        product("second", first, &weights)
    };
    graph.outputs = vec![second];
    graph
}

/// The first is what [`answer`] asks.
fn samples() -> Vec<Vec<Value>> {
    let numbers = |step: usize| (0..3 * WIDTH).map(|i| (i * step % 13) as f32 * 0.1 - 0.6).collect::<Vec<_>>();
    let sample = |step| vec![Value::from(Tensor::from_slice(&[3, WIDTH], &numbers(step)).unwrap())];
    vec![sample(1), sample(7)]
}

#[test]
fn products_of_integers_where_they_do_no_harm() {
    // With and without samples: what is multiplied first is no input as it comes.
    for samples in [samples(), Vec::new()] {
        let knows_range = !samples.is_empty();
        let (model, verdict) = compile_in(Precision::Fast, layers(false), some_matrix(), samples);
        let Some(Verdict::Within { options, floats, differences }) = verdict else { panic!("{verdict:?}") };
        assert_eq!(options.integers.keys().collect::<Vec<_>>(), ["first", "second"]);
        assert!(floats.is_empty() && differences[0].cosine > 0.99, "{floats:?} {differences:?}");
        let exact = answer(&compile_in(Precision::Exact, layers(false), some_matrix(), Vec::new()).0);
        let fast = answer(&model);
        assert_ne!(fast, exact);
        let largest = exact.iter().fold(0f64, |largest, x| largest.max(x.abs()));
        assert!(
            !knows_range || fast.iter().zip(&exact).all(|(a, b)| (a - b).abs() < 0.05 * largest),
            "{fast:?} {exact:?}"
        );
    }
}

#[test]
fn products_that_8_bits_ruin_keep_floats() {
    let (model, verdict) = compile_in(Precision::Fast, layers(true), some_matrix(), samples());
    let Some(Verdict::Within { options, floats, differences }) = verdict else { panic!("{verdict:?}") };
    assert_eq!(options.integers.keys().collect::<Vec<_>>(), ["first"]);
    assert_eq!((floats, options.exact_nodes.len()), (["second".to_owned()].into(), 0));
    assert!(differences[0].cosine >= 0.99, "{differences:?}");
    assert_eq!(model.reduced(), ["second"]);
}

#[test]
fn what_no_product_of_integers_is_good_for_is_balanced_or_exact() {
    // The difference of two products is lost by any rounding.
    for (outputs, is_exact) in [(Outputs::Delicate, true), (Outputs::Both, false)] {
        let (model, verdict) = compile_in(Precision::Fast, graph(outputs), some_matrix(), samples());
        match verdict {
            Some(Verdict::Beyond(differences)) => assert!(is_exact && differences[0].cosine < 0.99),
            Some(Verdict::Within { options, .. }) => {
                assert!(!is_exact && !options.integers.contains_key("left") && options.exact_nodes.contains("left"));
            }
            other => panic!("{other:?}"),
        }
        let exact = compile_in(Precision::Exact, graph(outputs), some_matrix(), Vec::new()).0;
        assert_eq!(answer(&model) == answer(&exact), is_exact);
    }
}

#[test]
fn nodes_that_are_to_stay_exact_multiply_no_integers() {
    let unit = CpuUnit::new(&CpuOptions { threads: Some(1), matrix: some_matrix().into(), ..CpuOptions::default() });
    let compile = CompileOptions { exact_nodes: ["first".to_owned()].into(), ..Precision::Fast.into() };
    let options = ModelOptions { compile, ..ModelOptions::default() };
    let (model, verdict) = Model::compile_guarded(layers(false), &unit, &options, samples()).unwrap();
    let Some(Verdict::Within { options, .. }) = verdict else { panic!("{verdict:?}") };
    assert_eq!(options.integers.keys().collect::<Vec<_>>(), ["second"]);
    assert!(model.reduced().is_empty());
}
