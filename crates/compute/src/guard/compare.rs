//! Answers beside each other.

use super::inputs;
use crate::Model;
use halimede_graph::Graph;
use halimede_tensor::{Tensor, TensorError, Value};
use std::fmt;

/// How an output of floats in fewer bits compares with the exact one.
#[derive(Debug, Clone, PartialEq)]
pub struct Difference {
    /// Name of the output.
    pub output: String,
    /// The cosine of the angle between them after the mean of the exact one was taken off both; 0 where one is
    /// finite and the other is not.
    pub cosine: f64,
    /// The largest difference, relative to the largest exact number.
    pub largest: f64,
}

impl Difference {
    /// Compares an output with the exact one.
    ///
    /// # Errors
    /// One of them holds no numbers.
    pub fn between(output: String, exact: &Tensor, other: &Tensor) -> Result<Difference, TensorError> {
        Ok(difference(output, &exact.to_f64s()?, &other.to_f64s()?))
    }
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "'{}': cosine {:.6}, largest difference {:.2e}", self.output, self.cosine, self.largest)
    }
}

/// What the exact model answers to some inputs.
pub(super) struct Answers<'a> {
    exact: &'a Graph,
    /// Inputs and the outputs of the exact model.
    pairs: Vec<(Vec<Value>, Vec<Value>)>,
}

impl<'a> Answers<'a> {
    /// The answers to `samples`, or to made-up inputs where there are none; the reason where it has no answer.
    pub fn new(exact: &'a Model, samples: &[Vec<Value>]) -> Result<Answers<'a>, String> {
        let graph = exact.graph();
        let pairs = match samples {
            [] => vec![inputs::made_up(graph, &|inputs| answer(exact, inputs))?],
            samples => {
                let pair = |inputs: &Vec<Value>| Ok((inputs.clone(), answer(exact, inputs)?));
                samples.iter().map(pair).collect::<Result<_, String>>()?
            }
        };
        Ok(Answers { exact: graph, pairs })
    }

    /// What was answered to.
    pub fn inputs(&self) -> Vec<Vec<Value>> {
        self.pairs.iter().map(|(inputs, _)| inputs.clone()).collect()
    }

    /// How far the outputs of `candidate` are off; of each the worst, by its cosine.
    pub fn compare(&self, candidate: &Model) -> Result<Vec<Difference>, String> {
        let mut worst: Vec<Difference> = Vec::new();
        for (inputs, expected) in &self.pairs {
            let actual = answer(candidate, inputs)?;
            let outputs = expected.iter().zip(&actual).zip(&self.exact.outputs);
            for ((expected, actual), value) in outputs {
                let (Value::Tensor(expected), Value::Tensor(actual)) = (expected, actual) else { continue };
                if !expected.dtype().is_float() {
                    continue;
                }
                let output = self.exact.values[value.index()].name.clone();
                let found = Difference::between(output, expected, actual).map_err(|error| error.to_string())?;
                match worst.iter_mut().find(|known| known.output == found.output) {
                    Some(known) if known.cosine <= found.cosine => {}
                    Some(known) => *known = found,
                    None => worst.push(found),
                }
            }
        }
        if worst.is_empty() { Err("no output is a tensor of floats".to_owned()) } else { Ok(worst) }
    }
}

fn answer(model: &Model, inputs: &[Value]) -> Result<Vec<Value>, String> {
    let mut session = model.session();
    session.run(inputs).and_then(|()| session.take_outputs()).map_err(|error| error.to_string())
}

fn difference(output: String, expected: &[f64], actual: &[f64]) -> Difference {
    let (mut product, mut lengths, mut largest, mut scale) = (0.0, (0.0, 0.0), 0f64, 0f64);
    let mean = mean(expected);
    for (&a, &b) in expected.iter().zip(actual) {
        // Infinities and NaNs say nothing where both have them, such as behind a mask.
        if a == b && a.is_infinite() || a.is_nan() && b.is_nan() {
            continue;
        }
        if !a.is_finite() || !b.is_finite() {
            return Difference { output, cosine: 0.0, largest: f64::INFINITY };
        }
        (largest, scale) = (largest.max((a - b).abs()), scale.max(a.abs()));
        let (a, b) = (a - mean, b - mean);
        product += a * b;
        lengths = (lengths.0 + a * a, lengths.1 + b * b);
    }
    let length = f64::sqrt(lengths.0) * f64::sqrt(lengths.1);
    // Two zeros point the same way.
    let cosine = if length > 0.0 { product / length } else { f64::from(lengths.0 == lengths.1) };
    Difference { output, cosine, largest: largest / scale.max(f64::MIN_POSITIVE) }
}

/// What is the same in all numbers, so that it hides no difference between them; 0 where they do not differ at all.
fn mean(numbers: &[f64]) -> f64 {
    let finite = || numbers.iter().filter(|number| number.is_finite());
    let mean = finite().sum::<f64>() / finite().count().max(1) as f64;
    let spread = finite().fold(0f64, |spread, number| spread.max((number - mean).abs()));
    if spread > mean.abs() * 1e-6 { mean } else { 0.0 }
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
        // A bias that all share hides nothing.
        assert!(of(&[1001.0, 1002.0, 1003.0], &[1002.0, 1002.0, 1002.0]).cosine < 0.5);
        assert_eq!(of(&[f64::INFINITY, 1.0], &[f64::INFINITY, 1.0]).cosine, 1.0);
        assert_eq!(of(&[f64::INFINITY, 1.0], &[3.0, 1.0]).cosine, 0.0);
        assert_eq!(of(&[0.0, 0.0], &[0.0, 1.0]).cosine, 0.0);
    }
}
