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
    /// The cosine of the angle between them after the mean of the exact one was taken off both; where that is the same
    /// number everywhere, the one that a difference of this size makes at a right angle. 0 where one is finite and the
    /// other is not, or their sizes differ.
    pub cosine: f64,
    /// The largest difference, relative to the largest exact number.
    pub largest: f64,
}

/// Compares outputs with the exact ones, over any number of samples.
#[derive(Debug, Default)]
pub struct Comparison {
    outputs: Vec<Compared>,
}

/// What is known of an output so far.
#[derive(Debug)]
struct Compared {
    output: String,
    /// The worst of the samples in which it varies, by its cosine.
    worst: Option<Difference>,
    /// Numbers of the samples in which it does not, such as the only one that it has: they say more together.
    level: Vec<Pair>,
}

/// An exact number and the one in its place.
type Pair = (f64, f64);

impl Comparison {
    /// Adds what an output is in one more sample.
    ///
    /// # Errors
    /// One of the tensors holds no numbers.
    pub fn add(&mut self, output: &str, exact: &Tensor, other: &Tensor) -> Result<(), TensorError> {
        let (exact, other) = (exact.to_f64s()?, other.to_f64s()?);
        let known = self.outputs.iter().position(|compared| compared.output == output);
        let index = known.unwrap_or_else(|| {
            self.outputs.push(Compared { output: output.to_owned(), worst: None, level: Vec::new() });
            self.outputs.len() - 1
        });
        self.outputs[index].add(&exact, &other);
        Ok(())
    }

    /// How far each output is off where it is off most, and the names of those of which no sample has a finite number.
    pub fn finish(self) -> (Vec<Difference>, Vec<String>) {
        let (mut differences, mut silent) = (Vec::new(), Vec::new());
        for mut compared in self.outputs {
            if !compared.level.is_empty() {
                let found = difference(&compared.output, &compared.level);
                compared.keep(found);
            }
            match compared.worst {
                Some(worst) => differences.push(worst),
                None => silent.push(compared.output),
            }
        }
        (differences, silent)
    }
}

impl Compared {
    fn add(&mut self, exact: &[f64], other: &[f64]) {
        // Infinities and NaNs say nothing where both have them, such as behind a mask.
        let says_nothing = |&(a, b): &Pair| a == b && a.is_infinite() || a.is_nan() && b.is_nan();
        let pairs = exact.iter().copied().zip(other.iter().copied()).filter(|pair| !says_nothing(pair));
        let mut pairs: Vec<Pair> = pairs.collect();
        if exact.len() != other.len() || pairs.iter().any(|(a, b)| !a.is_finite() || !b.is_finite()) {
            self.keep(Difference { output: self.output.clone(), cosine: 0.0, largest: f64::INFINITY });
        } else if level(&pairs).is_some() {
            self.level.append(&mut pairs);
        } else {
            let found = difference(&self.output, &pairs);
            self.keep(found);
        }
    }

    fn keep(&mut self, found: Difference) {
        if self.worst.as_ref().is_none_or(|known| found.cosine < known.cosine) {
            self.worst = Some(found);
        }
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
    is_made_up: bool,
}

impl<'a> Answers<'a> {
    /// The answers to `samples`, or to made-up inputs where there are none; the reason where it has no answer.
    pub fn new(exact: &'a Model, samples: &[Vec<Value>]) -> Result<Answers<'a>, String> {
        let graph = exact.graph();
        let pairs = match samples {
            [] => inputs::made_up(graph, &|inputs| answer(exact, inputs))?,
            samples => {
                let pair = |inputs: &Vec<Value>| Ok((inputs.clone(), answer(exact, inputs)?));
                samples.iter().map(pair).collect::<Result<_, String>>()?
            }
        };
        Ok(Answers { exact: graph, pairs, is_made_up: samples.is_empty() })
    }

    /// What was answered to.
    pub fn inputs(&self) -> Vec<Vec<Value>> {
        self.pairs.iter().map(|(inputs, _)| inputs.clone()).collect()
    }

    /// How far the outputs of `candidate` are off; of each the worst, by its cosine. The reason where there is one that
    /// cannot be compared.
    pub fn compare(&self, candidate: &Model) -> Result<Vec<Difference>, String> {
        let mut comparison = Comparison::default();
        for (inputs, expected) in &self.pairs {
            let actual = answer(candidate, inputs)?;
            let outputs = expected.iter().zip(&actual).zip(&self.exact.outputs);
            for ((expected, actual), value) in outputs {
                let (Value::Tensor(expected), Value::Tensor(actual)) = (expected, actual) else { continue };
                if !expected.dtype().is_float() {
                    continue;
                }
                let output = &self.exact.values[value.index()].name;
                comparison.add(output, expected, actual).map_err(|error| error.to_string())?;
            }
        }
        let (differences, silent) = comparison.finish();
        match silent.first() {
            Some(output) => Err(self.silence(output)),
            None if differences.is_empty() => Err("no output is a tensor of floats".to_owned()),
            None => Ok(differences),
        }
    }

    /// Why an output cannot be compared, and what helps.
    fn silence(&self, output: &str) -> String {
        match self.is_made_up {
            true => format!(
                "output '{output}' has no finite number for made-up inputs: give samples of real ones (parameter \
                 'calibration')"
            ),
            false => format!(
                "output '{output}' has no finite number in any sample: give samples in which it has (parameter \
                 'calibration')"
            ),
        }
    }
}

fn answer(model: &Model, inputs: &[Value]) -> Result<Vec<Value>, String> {
    let mut session = model.session();
    session.run(inputs).and_then(|()| session.take_outputs()).map_err(|error| error.to_string())
}

/// Of pairs of finite numbers.
fn difference(output: &str, pairs: &[Pair]) -> Difference {
    let (mut product, mut lengths, mut largest, mut scale, mut apart) = (0.0, (0.0, 0.0), 0f64, 0f64, 0.0);
    let is_level = level(pairs).is_some();
    let mean = if is_level { 0.0 } else { mean(pairs) };
    for &(a, b) in pairs {
        (largest, scale) = (largest.max((a - b).abs()), scale.max(a.abs()));
        apart += (a - b) * (a - b);
        let (a, b) = (a - mean, b - mean);
        product += a * b;
        lengths = (lengths.0 + a * a, lengths.1 + b * b);
    }
    let cosine = match is_level {
        // Two zeros do not differ.
        true if lengths.0 + apart == 0.0 => 1.0,
        // All multiples of one number point the same way: what counts is how far it is off.
        true => f64::sqrt(lengths.0 / (lengths.0 + apart)),
        false => product / (f64::sqrt(lengths.0) * f64::sqrt(lengths.1)),
    };
    // One that points nowhere, and sums that overflow, are as far off as can be.
    let cosine = if cosine.is_finite() { cosine } else { 0.0 };
    Difference { output: output.to_owned(), cosine, largest: largest / scale.max(f64::MIN_POSITIVE) }
}

/// What is the same in all exact numbers, so that it hides no difference between them.
fn mean(pairs: &[Pair]) -> f64 {
    pairs.iter().map(|(a, _)| a).sum::<f64>() / pairs.len().max(1) as f64
}

/// The number that all exact ones are, but for how they are rounded.
fn level(pairs: &[Pair]) -> Option<f64> {
    let mean = mean(pairs);
    let spread = pairs.iter().fold(0f64, |spread, (a, _)| spread.max((a - mean).abs()));
    (spread <= mean.abs() * 1e-6).then_some(mean)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a comparison of these samples of one output comes to; `None` where nothing of them could be compared.
    fn over(samples: &[(&[f32], &[f32])]) -> Option<Difference> {
        let mut comparison = Comparison::default();
        for (exact, other) in samples {
            let tensor = |numbers: &[f32]| Tensor::from_slice(&[numbers.len()], numbers).unwrap();
            comparison.add("y", &tensor(exact), &tensor(other)).unwrap();
        }
        let (mut differences, silent) = comparison.finish();
        assert_eq!(differences.len() + silent.len(), 1);
        differences.pop()
    }

    fn of(exact: &[f32], other: &[f32]) -> Difference {
        over(&[(exact, other)]).unwrap()
    }

    #[test]
    fn differences() {
        assert_eq!((of(&[1.0, 2.0], &[1.0, 2.0]).largest, of(&[0.0], &[0.0]).cosine), (0.0, 1.0));
        assert!(of(&[1.0, 0.0], &[0.0, 1.0]).cosine < 1e-9);
        assert!((of(&[4.0, 2.0], &[4.0, 2.4]).largest - 0.1).abs() < 1e-6);
        // A bias that all share hides nothing.
        assert!(of(&[1001.0, 1002.0, 1003.0], &[1002.0, 1002.0, 1002.0]).cosine < 0.5);
        assert_eq!(of(&[0.0, 0.0], &[0.0, 1.0]).cosine, 0.0);
        assert_eq!(of(&[1.0, 3.0], &[2.0, 2.0]).cosine, 0.0);
    }

    #[test]
    fn infinities_and_nans() {
        const NAN: f32 = f32::NAN;
        const INFINITY: f32 = f32::INFINITY;
        assert_eq!(of(&[INFINITY, 1.0], &[INFINITY, 1.0]).cosine, 1.0);
        assert!(of(&[NAN, 1.0, 2.0], &[NAN, 1.0, 2.0]).cosine > 0.999);
        for (exact, other) in [(INFINITY, 3.0), (3.0, NAN), (INFINITY, -INFINITY), (NAN, INFINITY)] {
            assert_eq!(of(&[exact, 1.0], &[other, 1.0]).cosine, 0.0, "{exact} {other}");
        }
        // Where both have nothing else, nothing was compared.
        assert_eq!(over(&[(&[NAN, INFINITY], &[NAN, INFINITY]), (&[], &[])]), None);
        // Such a sample neither hides another one nor speaks for it.
        let silent: (&[f32], &[f32]) = (&[NAN, NAN], &[NAN, NAN]);
        let (good, bad): (&[f32], &[f32]) = (&[1.0, 2.0], &[2.0, 1.0]);
        for samples in [[silent, (good, bad), (good, good)], [(good, good), (good, bad), silent]] {
            assert!(over(&samples).unwrap().cosine < -0.9);
        }
        assert!(over(&[silent, (good, good)]).unwrap().cosine > 0.999);
    }

    #[test]
    fn sizes_that_differ() {
        assert_eq!(of(&[1.0, 2.0], &[1.0]).cosine, 0.0);
        assert_eq!(of(&[], &[1.0]).cosine, 0.0);
    }

    #[test]
    fn what_is_one_number_everywhere_is_compared_by_it() {
        assert_eq!(of(&[5.0, 5.0], &[5.0, 5.0]).cosine, 1.0);
        for other in [7.0, 3.0, -5.0, 0.0] {
            assert!(of(&[5.0; 3], &[other; 3]).cosine < 0.95, "{other}");
            assert!(of(&[5.0], &[other]).cosine < 0.95, "{other}");
        }
        // What rounding does to a number is no harm.
        assert!(of(&[5.0], &[5.02]).cosine > 0.9999);
        // Over several samples it varies: one of them may be near 0.
        let near: Vec<[f32; 2]> = vec![[1.0, 1.01], [-1.0, -0.99], [0.001, 0.005]];
        let samples: Vec<(&[f32], &[f32])> = near.iter().map(|pair| pair.split_at(1)).collect();
        assert!(over(&samples).unwrap().cosine > 0.999);
        let samples: Vec<(&[f32], &[f32])> = vec![(&[100.0], &[101.0]), (&[101.0], &[100.0])];
        assert!(over(&samples).unwrap().cosine < 0.0);
    }
}
