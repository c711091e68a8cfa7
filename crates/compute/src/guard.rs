//! Whether a model in fewer bits still says what it says in f32.
//!
//! Rounding is harmless in most models and ruinous in some: nobody can tell from the graph alone. So both
//! forms answer the same made-up inputs, and what they say is compared.

use crate::{CompileError, CompileOptions, ComputeUnit, Model, ModelOptions, Precision};
use halimede_graph::{Fact, Graph};
use halimede_tensor::{DType, Shape, Tensor, TensorError, Value};
use std::fmt;

/// How far a model in fewer bits may be off.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Budget {
    /// The cosine of the angle between an output and the exact one, at least.
    pub cosine_min: f64,
}

impl Default for Budget {
    fn default() -> Budget {
        Budget { cosine_min: 0.999 }
    }
}

/// How an output of floats in fewer bits compares with the exact one.
#[derive(Debug, Clone, PartialEq)]
pub struct Difference {
    /// Name of the output.
    pub output: String,
    /// The cosine of the angle between them; 0 where one is finite and the other is not.
    pub cosine: f64,
    /// The largest difference, relative to the largest exact number.
    pub largest: f64,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "'{}': cosine {:.6}, largest difference {:.2e}", self.output, self.cosine, self.largest)
    }
}

/// What came of a comparison.
#[derive(Debug, Clone, PartialEq)]
pub enum Verdict {
    /// Every output of floats is inside the budget.
    Within(Vec<Difference>),
    /// Some output is not.
    Beyond(Vec<Difference>),
    /// There was nothing to compare, and why.
    Untested(String),
}

impl Model {
    /// Compiles a model in the precision of `options` and compares it with the exact one. Gives the model to
    /// use: the exact one, unless the other is inside the budget. There is no verdict where `options` are
    /// exact themselves.
    pub fn compile_guarded(
        mut graph: Graph,
        unit: &dyn ComputeUnit,
        options: &ModelOptions,
        budget: &Budget,
    ) -> Result<(Model, Option<Verdict>), CompileError> {
        let reports = options.rewrite(&mut graph);
        if options.compile.precision == Precision::Exact {
            return Ok((Model::of(graph, reports, unit, &options.compile)?, None));
        }
        let candidate = Model::of(graph.clone(), reports.clone(), unit, &options.compile)?;
        let exact = Model::of(graph, reports, unit, &CompileOptions { precision: Precision::Exact })?;
        let verdict = compare(&exact, &candidate, budget);
        let model = if matches!(verdict, Verdict::Within(_)) { candidate } else { exact };
        Ok((model, Some(verdict)))
    }
}

/// Sizes that unknown dimensions are tried with: small ones first, then an image's.
const SIZES: [usize; 3] = [16, 64, 224];

fn compare(exact: &Model, candidate: &Model, budget: &Budget) -> Verdict {
    let mut reason = "it has no size to try".to_owned();
    for size in SIZES {
        let answers = inputs(exact.graph(), size).map_err(|error| error.to_string()).and_then(|inputs| {
            let expected = answer(exact, &inputs)?;
            Ok((expected, answer(candidate, &inputs)?))
        });
        match answers {
            Ok((expected, actual)) => return judge(exact.graph(), &expected, &actual, budget),
            Err(error) => reason = error,
        }
    }
    Verdict::Untested(reason)
}

fn answer(model: &Model, inputs: &[Value]) -> Result<Vec<Value>, String> {
    let mut session = model.session();
    session.run(inputs).and_then(|()| session.take_outputs()).map_err(|error| error.to_string())
}

fn judge(graph: &Graph, expected: &[Value], actual: &[Value], budget: &Budget) -> Verdict {
    let mut differences = Vec::new();
    for ((expected, actual), value) in expected.iter().zip(actual).zip(&graph.outputs) {
        let (Value::Tensor(expected), Value::Tensor(actual)) = (expected, actual) else { continue };
        if !expected.dtype().is_float() {
            continue;
        }
        let output = graph.values[value.index()].name.clone();
        match (expected.to_f64s(), actual.to_f64s()) {
            (Ok(expected), Ok(actual)) => differences.push(difference(output, &expected, &actual)),
            (Err(error), _) | (_, Err(error)) => return Verdict::Untested(error.to_string()),
        }
    }
    match differences.iter().all(|difference| difference.cosine >= budget.cosine_min) {
        _ if differences.is_empty() => Verdict::Untested("no output is a tensor of floats".to_owned()),
        true => Verdict::Within(differences),
        false => Verdict::Beyond(differences),
    }
}

fn difference(output: String, expected: &[f64], actual: &[f64]) -> Difference {
    let (mut product, mut lengths, mut largest, mut scale) = (0.0, (0.0, 0.0), 0f64, 0f64);
    for (&a, &b) in expected.iter().zip(actual) {
        // Infinities and NaNs say nothing where both have them, such as behind a mask.
        if a == b && a.is_infinite() || a.is_nan() && b.is_nan() {
            continue;
        }
        if !a.is_finite() || !b.is_finite() {
            return Difference { output, cosine: 0.0, largest: f64::INFINITY };
        }
        product += a * b;
        lengths = (lengths.0 + a * a, lengths.1 + b * b);
        (largest, scale) = (largest.max((a - b).abs()), scale.max(a.abs()));
    }
    let length = f64::sqrt(lengths.0) * f64::sqrt(lengths.1);
    // Two zeros point the same way.
    let cosine = if length > 0.0 { product / length } else { f64::from(lengths.0 == lengths.1) };
    Difference { output, cosine, largest: largest / scale.max(f64::MIN_POSITIVE) }
}

/// Made-up inputs: floats around 0, integers 0 and 1 (which every table of indices has), true. Unknown
/// dimensions are `size`, the first of a shape 1.
fn inputs(graph: &Graph, size: usize) -> Result<Vec<Value>, TensorError> {
    let mut state = 0x2545_f491_4f6c_dd1du64;
    let facts = graph.inputs.iter().map(|&input| graph.fact(input));
    facts.map(|fact| Ok(Value::Tensor(tensor(fact, size, &mut state)?))).collect()
}

fn tensor(fact: &Fact, size: usize, state: &mut u64) -> Result<Tensor, TensorError> {
    let dims = fact.shape.iter().flatten().enumerate();
    let shape: Shape = dims.map(|(axis, dim)| dim.size().unwrap_or(if axis == 0 { 1 } else { size })).collect();
    let count = halimede_tensor::element_count(&shape).unwrap_or(0);
    let dtype = fact.dtype.unwrap_or(DType::F32);
    // A linear congruential generator (Knuth, The Art of Computer Programming, volume 2, 3.3.4).
    let mut uniform = || {
        *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (*state >> 11) as f64 / (1u64 << 53) as f64
    };
    if dtype.is_float() {
        // The sum of twelve has the deviation 1.
        let numbers: Vec<f64> = (0..count).map(|_| (0..12).map(|_| uniform()).sum::<f64>() - 6.0).collect();
        return Tensor::from_f64s(dtype, &shape, &numbers);
    }
    match dtype {
        DType::Bool => Tensor::from_bools(&shape, &vec![true; count]),
        _ => {
            let numbers: Vec<i64> = (0..count).map(|_| i64::from(uniform() < 0.5)).collect();
            Tensor::from_i64s(dtype, &shape, &numbers)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differences() {
        let of = |a: &[f64], b: &[f64]| difference("y".to_owned(), a, b);
        assert_eq!((of(&[1.0, 2.0], &[1.0, 2.0]).largest, of(&[0.0], &[0.0]).cosine), (0.0, 1.0));
        assert!(of(&[1.0, 0.0], &[0.0, 1.0]).cosine < 1e-9);
        assert!((of(&[4.0, 2.0], &[4.0, 2.4]).largest - 0.1).abs() < 1e-9);
        assert_eq!(of(&[f64::INFINITY, 1.0], &[f64::INFINITY, 1.0]).cosine, 1.0);
        assert_eq!(of(&[f64::INFINITY, 1.0], &[3.0, 1.0]).cosine, 0.0);
        assert_eq!(of(&[0.0, 0.0], &[0.0, 1.0]).cosine, 0.0);
    }

    #[test]
    fn made_up_inputs_fit_what_is_known() {
        let fact =
            |dtype| Fact::tensor(dtype, [halimede_graph::Dim::symbol("n"), 3.into(), halimede_graph::Dim::symbol("m")]);
        let mut state = 1;
        for dtype in [DType::F32, DType::F16, DType::I64, DType::Bool, DType::U8] {
            let tensor = tensor(&fact(dtype), 5, &mut state).unwrap();
            assert_eq!((tensor.dtype(), tensor.shape()), (dtype, &[1, 3, 5][..]));
        }
        let numbers = tensor(&fact(DType::F32), 500, &mut state).unwrap().to_f64s().unwrap();
        let deviation = (numbers.iter().map(|x| x * x).sum::<f64>() / numbers.len() as f64).sqrt();
        assert!((0.9..1.1).contains(&deviation), "{deviation}");
    }
}
