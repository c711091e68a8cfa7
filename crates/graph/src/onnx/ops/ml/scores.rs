//! What the classifiers and regressors share: rows of features, labels, and what becomes of scores.

use crate::onnx::Attributes;
use crate::ops::{Call, Facts};
use crate::{Dim, Fact, OpError};
use halimede_tensor::{DType, Tensor, Value};
use smallvec::smallvec;

/// The first input as rows of features: the numbers, how many rows, how many features each. A vector
/// is one row.
pub fn rows(inputs: &[Option<Value>]) -> Result<(Vec<f64>, usize, usize), OpError> {
    let Some(Some(x)) = inputs.first() else { return Err(OpError::invalid("input 0 is missing")) };
    let x = x.tensor()?;
    let (count, width) = match *x.shape() {
        [width] => (1, width),
        [count, width] => (count, width),
        _ => return Err(OpError::invalid(format!("features of shape {:?}; rows of them are needed", x.shape()))),
    };
    Ok((x.to_f64s()?, count, width))
}

/// The labels of classes.
pub enum Labels {
    /// Integers.
    Ints(Vec<i64>),
    /// Texts.
    Strings(Vec<Vec<u8>>),
}

impl Labels {
    /// Reads the two attributes of which a node has one.
    pub fn read(attributes: &Attributes, ints: &str, strings: &str) -> Result<Labels, OpError> {
        match (attributes.ints(ints)?, attributes.strings(strings)?) {
            (Some(ints), _) if !ints.is_empty() => Ok(Labels::Ints(ints.to_vec())),
            (_, Some(strings)) if !strings.is_empty() => Ok(Labels::Strings(strings.to_vec())),
            _ => Err(OpError::invalid(format!("neither '{ints}' nor '{strings}' names the classes"))),
        }
    }

    /// Number of classes.
    pub fn len(&self) -> usize {
        match self {
            Labels::Ints(labels) => labels.len(),
            Labels::Strings(labels) => labels.len(),
        }
    }

    /// The datatype of the labels.
    pub fn dtype(&self) -> DType {
        match self {
            Labels::Ints(_) => DType::I64,
            Labels::Strings(_) => DType::String,
        }
    }

    /// The labels of the chosen classes. A class past the last is "none of them", 0 or an empty text.
    pub fn pick(&self, classes: &[usize]) -> Result<Tensor, OpError> {
        let shape = [classes.len()];
        Ok(match self {
            Labels::Ints(labels) => {
                let picked: Vec<i64> = classes.iter().map(|&c| labels.get(c).copied().unwrap_or(0)).collect();
                Tensor::from_slice(&shape, &picked)?
            }
            Labels::Strings(labels) => Tensor::from_strings(
                &shape,
                classes.iter().map(|&c| labels.get(c).cloned().unwrap_or_default()).collect(),
            )?,
        })
    }
}

/// What becomes of the scores of one row (attribute `post_transform`).
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum PostTransform {
    /// Nothing.
    None,
    /// Normalised exponentials.
    Softmax,
    /// `1 / (1 + e⁻ˣ)`.
    Logistic,
    /// Normalised exponentials of all scores but zeros.
    SoftmaxZero,
    /// The quantile function of the normal distribution.
    Probit,
}

impl PostTransform {
    /// Reads the attribute.
    pub fn read(attributes: &Attributes) -> Result<PostTransform, OpError> {
        Ok(match attributes.text_or("post_transform", "NONE")? {
            "NONE" => PostTransform::None,
            "SOFTMAX" => PostTransform::Softmax,
            "LOGISTIC" => PostTransform::Logistic,
            "SOFTMAX_ZERO" => PostTransform::SoftmaxZero,
            "PROBIT" => PostTransform::Probit,
            other => return Err(OpError::invalid(format!("post_transform is '{other}', which ONNX does not know"))),
        })
    }

    /// Transforms the scores of one row in place.
    pub fn apply(self, scores: &mut [f64]) {
        let largest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        match self {
            PostTransform::None => return,
            PostTransform::Logistic => scores.iter_mut().for_each(|score| *score = logistic(*score)),
            PostTransform::Probit => scores.iter_mut().for_each(|score| *score = probit(*score)),
            PostTransform::Softmax => scores.iter_mut().for_each(|score| *score = (*score - largest).exp()),
            PostTransform::SoftmaxZero => scores.iter_mut().for_each(|score| {
                let zero = score.abs() <= 1e-7;
                *score = if zero { *score * (-largest).exp() } else { (*score - largest).exp() };
            }),
        }
        if matches!(self, PostTransform::Softmax | PostTransform::SoftmaxZero) {
            let sum: f64 = scores.iter().sum();
            scores.iter_mut().for_each(|score| *score = if sum == 0.0 { 0.5 } else { *score / sum });
        }
    }

    /// The two scores that the one score of a binary classifier stands for; `probability` where it is
    /// the second class's probability already.
    pub fn expand(self, score: f64, probability: bool) -> Vec<f64> {
        match self {
            PostTransform::Probit => vec![probit(score)],
            _ if probability => vec![1.0 - score, score],
            transform => {
                let mut both = vec![-score, score];
                transform.apply(&mut both);
                both
            }
        }
    }
}

/// `1 / (1 + e⁻ˣ)`.
pub fn logistic(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

fn probit(x: f64) -> f64 {
    std::f64::consts::SQRT_2 * inverse_erf(2.0 * x - 1.0)
}

/// Winitzki's approximation, which ONNX Runtime uses too.
fn inverse_erf(x: f64) -> f64 {
    let log = ((1.0 - x) * (1.0 + x)).ln();
    let v = 2.0 / (std::f64::consts::PI * 0.147) + 0.5 * log;
    (-v + (v * v - log / 0.147).sqrt()).sqrt().copysign(x)
}

/// The position of the first largest score.
pub fn largest(scores: &[f64]) -> usize {
    (1..scores.len()).fold(0, |best, i| if scores[i] > scores[best] { i } else { best })
}

/// Rows of scores as an f32 tensor.
pub fn scores_tensor(rows: Vec<Vec<f64>>) -> Result<Tensor, OpError> {
    let width = rows.first().map_or(0, Vec::len);
    Ok(Tensor::from_f64s(DType::F32, &[rows.len(), width], &rows.concat())?)
}

/// The shape rule of a classifier: a label per row, and scores whose width is left open.
pub fn infer_classifier(labels: DType, inputs: &[Option<&Fact>]) -> Facts {
    let count = row_count(inputs);
    let fact = |dtype, shape: Option<Vec<Dim>>| Fact {
        dtype: Some(dtype),
        shape: shape.map(|s| s.into_iter().collect()),
        ..Fact::default()
    };
    smallvec![fact(labels, count.clone().map(|n| vec![n])), fact(DType::F32, count.map(|n| vec![n, Dim::unknown()]))]
}

/// The shape rule of a regressor.
pub fn infer_regressor(call: &Call, inputs: &[Option<&Fact>]) -> Result<Facts, OpError> {
    let targets = call.attributes.int("n_targets")?.or(call.attributes.int("targets")?).unwrap_or(1);
    let shape = row_count(inputs).map(|n| [n, Dim::from(targets)].into_iter().collect());
    Ok(smallvec![Fact { dtype: Some(DType::F32), shape, ..Fact::default() }])
}

fn row_count(inputs: &[Option<&Fact>]) -> Option<Dim> {
    let shape = inputs.first().copied().flatten()?.shape.as_ref()?;
    Some(if shape.len() == 1 { Dim::from(1) } else { shape.first()?.clone() })
}
