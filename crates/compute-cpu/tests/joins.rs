//! Values that are made where a later step puts them hold what they would hold elsewhere, whoever else reads them.

#![allow(clippy::unwrap_used, reason = "a test; its helpers fail with it")]

use halimede_compute::{CompileOptions, Model, ModelOptions, Precision};
use halimede_compute_cpu::{CpuOptions, CpuUnit};
use halimede_graph::ops::{Binary, Concat, Op, Unary};
use halimede_graph::{Builder, Fact, Graph, ValueId};
use halimede_tensor::{DType, Tensor, Value};
use proptest::prelude::*;

/// Numbers of a row: rows are cache lines.
const COLUMNS: usize = 16;

/// What becomes of values that are there already, which are named by their place among them.
#[derive(Debug, Clone)]
enum Made {
    Negated(usize),
    /// Of the first value, and the one after it that has as many rows.
    Larger(usize, usize),
    /// The same numbers under another shape and back.
    Renamed(usize),
    Joined(Vec<usize>),
    Constant(usize),
}

fn made() -> impl Strategy<Value = Made> {
    let place = || 0usize..64;
    prop_oneof![
        3 => place().prop_map(Made::Negated),
        2 => (place(), place()).prop_map(|(a, b)| Made::Larger(a, b)),
        1 => place().prop_map(Made::Renamed),
        4 => prop::collection::vec(place(), 1..5).prop_map(Made::Joined),
        1 => (0usize..4).prop_map(Made::Constant),
    ]
}

/// A graph of such steps, and what each value holds where the request is these rows.
fn graph(steps: &[Made], outputs: &[usize], request: &[f32]) -> (Graph, Vec<Vec<f32>>) {
    let mut graph = Graph::default();
    let rows = request.len() / COLUMNS;
    let input = graph.add_value("x".to_owned(), Fact::tensor(DType::F32, [rows, COLUMNS].map(Into::into)));
    graph.inputs.push(input);
    let mut builder = Builder::new(&mut graph);
    let b = &mut builder;
    let mut values: Vec<(ValueId, Vec<f32>)> = vec![(input, request.to_vec())];
    for (number, step) in steps.iter().enumerate() {
        let at = |place: usize| &values[place % values.len()];
        let next = match step {
            Made::Negated(x) => {
                let (x, elements) = at(*x);
                (b.unary(Unary::Neg, *x).unwrap(), elements.iter().map(|x| -x).collect())
            }
            Made::Larger(x, y) => {
                let (x, elements) = at(*x);
                let alike = (0..values.len()).map(|place| at(y + place)).find(|value| value.1.len() == elements.len());
                let (y, others) = alike.unwrap();
                let larger = elements.iter().zip(others).map(|(x, y)| x.max(*y)).collect();
                (b.binary(Binary::Max, *x, *y).unwrap(), larger)
            }
            Made::Renamed(x) => {
                let (x, elements) = at(*x);
                let flat = b.reshape(*x, &[-1]).unwrap();
                (b.reshape(flat, &[-1, COLUMNS as i64]).unwrap(), elements.clone())
            }
            Made::Joined(parts) => {
                let parts: Vec<_> = parts.iter().map(|&part| at(part)).collect();
                let ids: Vec<ValueId> = parts.iter().map(|part| part.0).collect();
                let all = parts.iter().flat_map(|part| &part.1).copied().collect();
                (b.add(Op::Concat(Concat { axis: 0 }), &ids).unwrap(), all)
            }
            Made::Constant(rows) => {
                let elements: Vec<f32> = (0..rows * COLUMNS).map(|x| (x + number) as f32).collect();
                (b.constant(Tensor::from_slice(&[*rows, COLUMNS], &elements).unwrap()), elements)
            }
        };
        // Joined values grow, and what joins them with themselves would do so for ever.
        if next.1.len() <= 64 * COLUMNS {
            values.push(next);
        }
    }
    let wanted: Vec<_> = outputs.iter().map(|&place| &values[place % values.len()]).chain(values.last()).collect();
    let (ids, expected): (Vec<ValueId>, Vec<Vec<f32>>) = wanted.into_iter().cloned().unzip();
    graph.outputs = ids;
    (graph, expected)
}

fn compiled(graph: Graph) -> Model {
    let unit = CpuUnit::new(&CpuOptions { threads: Some(1), ..CpuOptions::default() });
    let options = ModelOptions { passes: None, compile: CompileOptions::from(Precision::Exact) };
    Model::compile(graph, &unit, &options).unwrap()
}

fn request(rows: usize) -> Vec<f32> {
    (0..rows * COLUMNS).map(|x| (x * 37 % 101) as f32 - 50.0).collect()
}

/// Runs twice, so that the second run finds in the arena what the first left there.
fn assert_answers(model: &Model, request: &[f32], expected: &[Vec<f32>]) {
    let input = Tensor::from_slice(&[request.len() / COLUMNS, COLUMNS], request).unwrap();
    let mut session = model.session();
    for _ in 0..2 {
        session.run(&[Value::from(input.clone())]).unwrap();
    }
    for (answer, expected) in session.take_outputs().unwrap().iter().zip(expected) {
        assert_eq!(answer.tensor().unwrap().slice::<f32>().unwrap(), expected);
    }
}

#[test]
fn joined_values_answer_alike() {
    // Values: 0 the request, 1 and 2 its copies with another sign, 3 the second one renamed, 4 all of them twice, and so on.
    let steps = [
        Made::Negated(0),
        Made::Negated(0),
        Made::Renamed(2),
        Made::Joined(vec![1, 3, 0, 1]),
        // Read after it was joined, which takes nobody's memory.
        Made::Negated(1),
        Made::Joined(vec![4, 5]),
        Made::Negated(6),
    ];
    let request = request(3);
    let (graph, expected) = graph(&steps, &[3], &request);
    let model = compiled(graph);
    assert_answers(&model, &request, &expected);
    let mut session = model.session();
    session.run(&[Value::from(Tensor::from_slice(&[3, COLUMNS], &request).unwrap())]).unwrap();
    let joins: Vec<String> =
        session.steps().into_iter().filter(|step| step.operator == "Concat").map(|step| step.kernel).collect();
    // The third value leaves the plan, the fourth is the request, the last was put there already.
    assert_eq!(joins, ["concat, 1 of 4 in place", "concat, 2 of 2 in place"]);
}

proptest! {
    #[test]
    fn whatever_is_joined_answers_alike(
        steps in prop::collection::vec(made(), 1..12),
        outputs in prop::collection::vec(0usize..64, 0..3),
        rows in 0usize..4,
    ) {
        let request = request(rows);
        let (graph, expected) = graph(&steps, &outputs, &request);
        assert_answers(&compiled(graph), &request, &expected);
    }
}
