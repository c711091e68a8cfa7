//! Operators on inputs that need not fit them: shapes of other ranks, axes without elements, numbers out of range. They
//! may refuse them, and must not panic.

#![allow(clippy::unwrap_used, reason = "a test; its helpers fail with it")]

use halimede_compute::{ComputeUnit, Model, ModelOptions};
use halimede_compute_cpu::{CpuOptions, CpuUnit};
use halimede_conformance::caught;
use halimede_graph::onnx::import::model_with;
use halimede_graph::onnx::ops::OPERATORS;
use halimede_graph::onnx::{Attribute, Case};
use halimede_graph::ops::has_many_rows;
use halimede_graph::{Dim, Fact, reference};
use halimede_tensor::{DType, Tensor, Value};
use std::time::Duration;

/// Random numbers, the same in every run (SplitMix64).
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % bound as u64) as usize
    }

    fn one_in(&mut self, count: usize) -> bool {
        self.below(count) == 0
    }

    fn shape(&mut self, like: &[usize]) -> Vec<usize> {
        let mut shape = like.to_vec();
        match self.below(8) {
            0 => shape.push(1),
            1 => drop(shape.pop()),
            2 => shape.insert(0, 2),
            _ => {}
        }
        for size in &mut shape {
            if self.one_in(2) {
                *size = [0, 0, 1, 1, 2, 3, 5][self.below(7)];
            }
        }
        // Where there is nothing, an axis may be of any length.
        if shape.contains(&0) && self.one_in(4) {
            let axis = self.below(shape.len());
            if shape.iter().enumerate().any(|(other, &size)| other != axis && size == 0) {
                shape[axis] = 1 << 40;
            }
        }
        shape
    }

    fn tensor(&mut self, like: &Tensor) -> Tensor {
        let shape = if self.one_in(3) { like.shape().to_vec() } else { self.shape(like.shape()) };
        let count = halimede_tensor::element_count(&shape).unwrap();
        if shape == like.shape() && self.one_in(2) {
            return like.clone();
        }
        let dtype = like.dtype();
        if dtype == DType::String {
            let words = ["", "a", "b c", "7", "\u{e9}"];
            let strings = (0..count).map(|_| words[self.below(words.len())].as_bytes().to_vec()).collect();
            return Tensor::from_strings(&shape, strings).unwrap();
        }
        let extreme = [i64::MIN, i64::MAX, 1 << 40, -(1 << 40)];
        let wide = dtype == DType::I64 && self.one_in(8);
        let numbers: Vec<i64> = (0..count)
            .map(|_| match wide && self.one_in(4) {
                true => extreme[self.below(extreme.len())],
                false if dtype.is_float() && self.one_in(16) => 1 << 20,
                false => self.below(11) as i64 - 4,
            })
            .collect();
        match dtype {
            DType::Bool => Tensor::from_bools(&shape, &numbers.iter().map(|n| n % 2 == 0).collect::<Vec<_>>()).unwrap(),
            DType::Complex64 | DType::Complex128 => Tensor::zeros(dtype, &shape).unwrap(),
            _ => {
                let whole = Tensor::from_slice(&shape, &numbers).unwrap();
                whole.cast(dtype, halimede_tensor::CastOptions::default()).unwrap_or_else(|_| like.clone())
            }
        }
    }

    fn value(&mut self, like: &Value) -> Value {
        match like {
            Value::Tensor(tensor) => self.tensor(tensor).into(),
            Value::Sequence(values) => {
                let count = self.below(values.len() + 1);
                Value::Sequence(values.iter().take(count).map(|value| self.value(value)).collect())
            }
            Value::Optional(Some(value)) if !self.one_in(4) => Value::Optional(Some(self.value(value).into())),
            Value::Optional(_) => Value::Optional(None),
        }
    }

    fn case(&mut self, case: &Case) -> Case {
        let mut case = case.clone();
        for value in case.inputs.iter_mut().flatten() {
            *value = self.value(value);
        }
        for attribute in case.attributes.0.values_mut() {
            if !self.one_in(4) {
                continue;
            }
            match attribute {
                Attribute::Int(number) => *number = self.below(9) as i64 - 4,
                Attribute::Ints(numbers) => {
                    if self.one_in(3) {
                        numbers.pop();
                    }
                    for number in numbers {
                        *number = self.below(9) as i64 - 3;
                    }
                }
                _ => {}
            }
        }
        case
    }
}

/// What a model says of an input.
#[derive(Debug, Clone, Copy)]
enum Known {
    Shape,
    Rank,
    Nothing,
}

impl Known {
    fn fact(self, index: usize, value: &Value) -> Fact {
        match value {
            Value::Tensor(tensor) => {
                let shape = tensor.shape();
                let symbol = |axis| Dim::symbol(&format!("s{index}.{axis}"));
                match self {
                    Known::Shape => Fact::tensor(tensor.dtype(), shape.iter().map(|&size| size.into())),
                    Known::Rank => Fact::tensor(tensor.dtype(), (0..shape.len()).map(symbol)),
                    Known::Nothing => Fact::of_dtype(Some(tensor.dtype())),
                }
            }
            Value::Sequence(_) => Fact { kind: halimede_graph::Kind::Sequence, ..Fact::default() },
            Value::Optional(_) => Fact { kind: halimede_graph::Kind::Optional, ..Fact::default() },
        }
    }
}

fn run(case: &Case, unit: &dyn ComputeUnit, known: Known, constants: bool, by_definition: bool) {
    let constant = |index: usize| constants && index > 0;
    let Ok(model) = model_with(case, constant, &|index, value| known.fact(index, value)) else { return };
    let given = |(index, value): (usize, &Option<Value>)| match value {
        Some(Value::Tensor(_)) if constant(index) => None,
        value => value.clone(),
    };
    let inputs: Vec<Value> = case.inputs.iter().enumerate().filter_map(given).collect();
    if by_definition {
        // The interpreter has no bound on memory.
        let vast = |value: &Value| matches!(value, Value::Tensor(tensor) if has_many_rows(tensor.shape()));
        if !case.inputs.iter().flatten().any(vast) {
            let _ = reference::run(&model.graph, &inputs);
        }
        return;
    }
    let Ok(compiled) = Model::compile(model.graph, unit, &ModelOptions::default()) else { return };
    let _ = compiled.session().run_within(&inputs, Duration::from_secs(2));
}

/// Changes of each example: `HALIMEDE_ROUNDS`, of one operator where `HALIMEDE_OPERATOR` names it. Few for every build, many
/// for who looks for more.
fn rounds(operator: &str) -> usize {
    let variable = |name: &str| std::env::var(name).ok();
    match variable("HALIMEDE_OPERATOR").is_none_or(|only| only == operator) {
        true => variable("HALIMEDE_ROUNDS").and_then(|rounds| rounds.parse().ok()).unwrap_or(8),
        false => 0,
    }
}

#[test]
fn no_operator_panics() {
    let unit = CpuUnit::new(&CpuOptions { threads: Some(1), bytes_max: Some(1 << 24), ..CpuOptions::default() });
    let mut panics = Vec::new();
    for case in OPERATORS.iter().filter_map(|operator| operator.cases).flat_map(|cases| cases()) {
        let mut random = Random(1);
        for _ in 0..rounds(&format!("{:?}", case.operator)) {
            let changed = random.case(&case);
            for known in [Known::Shape, Known::Rank, Known::Nothing] {
                for (constants, by_definition) in [(false, false), (true, false), (false, true)] {
                    if let Err(why) = caught(|| run(&changed, &unit, known, constants, by_definition)) {
                        let (operator, attributes) = (case.operator, &changed.attributes);
                        panics.push(format!("{operator:?} of {attributes:?}, {:?}: {why}", changed.inputs));
                    }
                }
            }
        }
    }
    assert!(panics.is_empty(), "{} panics, such as {}", panics.len(), panics[0]);
}
