use super::scores::{Labels, PostTransform, infer_classifier, largest, logistic, rows, scores_tensor};
use super::svm::Kernel;
use crate::onnx::case::tensor;
use crate::onnx::{Attribute, Attributes, Case, Operator};
use crate::ops::{Call, Facts};
use crate::{Fact, OpError};
use halimede_tensor::Value;

/// Classification by support vectors, one machine per pair of classes, or by linear functions
/// (ai.onnx.ml SVMClassifier, opset 1).
pub static OPERATOR: Operator =
    Operator::in_domain("ai.onnx.ml", "SVMClassifier").evaluate(evaluate).infer(infer).cases(cases);

fn labels(attributes: &Attributes) -> Result<Labels, OpError> {
    Labels::read(attributes, "classlabels_ints", "classlabels_strings")
}

/// The machines' attributes.
struct Machines<'a> {
    kernel: Kernel,
    classes: usize,
    width: usize,
    coefficients: &'a [f32],
    supports: &'a [f32],
    /// First support vector of each class, and one past the last of all.
    starts: Vec<usize>,
    rho: &'a [f32],
    probabilities: Option<(&'a [f32], &'a [f32])>,
}

impl<'a> Machines<'a> {
    fn read(attributes: &'a Attributes, labels: &Labels, width: usize) -> Result<Machines<'a>, OpError> {
        let list = |name: &str| Ok::<_, OpError>(attributes.floats(name)?.unwrap_or_default());
        let mut starts = vec![0usize];
        for &count in attributes.ints("vectors_per_class")?.unwrap_or_default() {
            let next = usize::try_from(count).ok().and_then(|count| starts[starts.len() - 1].checked_add(count));
            starts.push(next.ok_or_else(|| OpError::invalid(format!("vectors_per_class holds {count}")))?);
        }
        let vectors = starts[starts.len() - 1];
        let classes = if vectors > 0 { starts.len() - 1 } else { labels.len() };
        let pairs = classes * classes.saturating_sub(1) / 2;
        let (coefficients, supports, rho) = (list("coefficients")?, list("support_vectors")?, list("rho")?);
        let fits = match vectors {
            0 => Some(coefficients.len()) == classes.checked_mul(width) && !rho.is_empty(),
            _ => {
                Some(supports.len()) == vectors.checked_mul(width)
                    && Some(coefficients.len()) == vectors.checked_mul(classes - 1)
                    && rho.len() == pairs
            }
        };
        if !fits {
            return Err(OpError::invalid(format!(
                "the machines' attributes do not fit {classes} classes of {width} features"
            )));
        }
        let (a, b) = (list("prob_a")?, list("prob_b")?);
        let probabilities = (vectors > 0 && a.len() == pairs && b.len() == pairs && pairs > 0).then_some((a, b));
        let kernel = if vectors > 0 { Kernel::read(attributes)? } else { Kernel::Linear };
        Ok(Machines { kernel, classes, width, coefficients, supports, starts, rho, probabilities })
    }

    fn linear(&self) -> bool {
        self.supports.is_empty()
    }

    /// The value of each linear function.
    fn functions(&self, row: &[f64]) -> Vec<f64> {
        let lines = self.coefficients.chunks_exact(self.width.max(1));
        lines.map(|line| self.kernel.of(row, line) + f64::from(self.rho[0])).collect()
    }

    /// The value of each pair's machine, and how many pairs each class wins.
    fn duels(&self, row: &[f64]) -> (Vec<f64>, Vec<f64>) {
        let alike: Vec<f64> = self.supports.chunks_exact(self.width.max(1)).map(|s| self.kernel.of(row, s)).collect();
        let weighted = |line: usize, class: usize| -> f64 {
            let range = self.starts[class]..self.starts[class + 1];
            let weights = &self.coefficients[line * alike.len()..][range.clone()];
            weights.iter().zip(&alike[range]).map(|(&weight, alike)| f64::from(weight) * alike).sum()
        };
        let (mut values, mut votes) = (Vec::new(), vec![0.0; self.classes]);
        for i in 0..self.classes {
            for j in i + 1..self.classes {
                let value = weighted(j - 1, i) + weighted(i, j) + f64::from(self.rho[values.len()]);
                votes[if value > 0.0 { i } else { j }] += 1.0;
                values.push(value);
            }
        }
        (values, votes)
    }
}

fn evaluate(call: &Call, inputs: &[Option<Value>]) -> Result<Vec<Value>, OpError> {
    let (x, _, width) = rows(inputs)?;
    let labels = labels(&call.attributes)?;
    let machines = Machines::read(&call.attributes, &labels, width)?;
    let transform = PostTransform::read(&call.attributes)?;
    let all_positive = machines.coefficients.iter().all(|&weight| weight >= 0.0);
    let (mut classes, mut scores) = (Vec::new(), Vec::new());
    for row in x.chunks_exact(width.max(1)) {
        let (values, votes) = match machines.linear() {
            true => (machines.functions(row), None),
            false => {
                let (values, votes) = machines.duels(row);
                (values, Some(votes))
            }
        };
        let (mut result, decided) = match machines.probabilities {
            Some((a, b)) => {
                let result = coupled(&values, a, b, machines.classes);
                let class = largest(&result);
                (result, class)
            }
            None => {
                let class = largest(votes.as_ref().unwrap_or(&values));
                (values, class)
            }
        };
        classes.push(match (machines.linear() && machines.rho.len() == 1 && labels.len() == 2, all_positive) {
            (true, true) if result[decided] >= 0.5 => 1,
            _ => decided,
        });
        match result[..] {
            [score] if labels.len() == 2 => scores.push(transform.expand(score, false)),
            _ => {
                transform.apply(&mut result);
                scores.push(result);
            }
        }
    }
    Ok(vec![labels.pick(&classes)?.into(), scores_tensor(scores)?.into()])
}

/// The probability of each class from the pairs' values: each pair's is a logistic function of its
/// value, and the classes' are those that fit them best (Wu, Lin and Weng 2004, second method).
fn coupled(values: &[f64], a: &[f32], b: &[f32], classes: usize) -> Vec<f64> {
    let mut wins = vec![vec![0.0; classes]; classes];
    let mut index = 0;
    for i in 0..classes {
        for j in i + 1..classes {
            let p = 1.0 - logistic(values[index] * f64::from(a[index]) + f64::from(b[index]));
            wins[i][j] = p.clamp(1e-7, 1.0 - 1e-7);
            wins[j][i] = 1.0 - wins[i][j];
            index += 1;
        }
    }
    let q = |t: usize, j: usize| -> f64 {
        if t == j {
            (0..classes).filter(|&i| i != t).map(|i| wins[i][t] * wins[i][t]).sum()
        } else {
            -wins[j][t] * wins[t][j]
        }
    };
    let mut p = vec![1.0 / classes as f64; classes];
    for _ in 0..classes.max(100) {
        let mut qp: Vec<f64> = (0..classes).map(|t| (0..classes).map(|j| q(t, j) * p[j]).sum()).collect();
        let mut pqp: f64 = p.iter().zip(&qp).map(|(p, qp)| p * qp).sum();
        if qp.iter().all(|qp| (qp - pqp).abs() < 0.005 / classes as f64) {
            break;
        }
        for t in 0..classes {
            let step = (pqp - qp[t]) / q(t, t);
            p[t] += step;
            pqp = (pqp + step * (step * q(t, t) + 2.0 * qp[t])) / ((1.0 + step) * (1.0 + step));
            for j in 0..classes {
                qp[j] = (qp[j] + step * q(t, j)) / (1.0 + step);
                p[j] /= 1.0 + step;
            }
        }
    }
    p
}

fn infer(call: &Call, inputs: &[Option<&Fact>]) -> Result<Facts, OpError> {
    Ok(infer_classifier(labels(&call.attributes)?.dtype(), inputs))
}

fn cases() -> Vec<Case> {
    vec![
        Case::new("three classes", &OPERATOR, 3)
            .attribute("classlabels_ints", Attribute::Ints(vec![0, 1, 2]))
            .attribute(
                "coefficients",
                Attribute::Floats(vec![
                    0.23671876,
                    0.2955312,
                    -0.5,
                    -0.032249983,
                    -0.4154871,
                    -0.5,
                    0.4154871,
                    0.5,
                    0.5,
                    0.20975962,
                    -0.42722574,
                    -0.28253388,
                ]),
            )
            .attribute("kernel_params", Attribute::Floats(vec![0.21959923, 0.0, 3.0]))
            .attribute("kernel_type", Attribute::String(b"LINEAR".to_vec()))
            .attribute("post_transform", Attribute::String(b"NONE".to_vec()))
            .attribute("rho", Attribute::Floats(vec![0.32692003, -1.2100749, -0.79760325]))
            .attribute(
                "support_vectors",
                Attribute::Floats(vec![2.0, -2.6, -2.0, -0.2, 0.4, -0.6, -0.9, 3.3, -0.5, -0.2, 0.2, -0.4]),
            )
            .attribute("vectors_per_class", Attribute::Ints(vec![2, 2, 2]))
            .input(tensor(&[3, 2], &[2.0f32, -2.6, 0.4, -0.6, -0.5, -0.2]))
            .output(tensor(&[3], &[0i64, 2, 2]))
            .output(tensor(
                &[3, 3],
                &[1.0003198f32, 1.0000001, -1.9966884, 0.50008, -0.6962863, -1.0846735, 0.56741995, -1.0, -0.99989754],
            ))
            .within(1e-3, 1e-4),
        Case::new("two classes", &OPERATOR, 3)
            .attribute("classlabels_ints", Attribute::Ints(vec![0, 1]))
            .attribute("coefficients", Attribute::Floats(vec![1.0, 1.0, -0.40363035, -1.0, -0.5963696]))
            .attribute("kernel_params", Attribute::Floats(vec![0.18422313, 0.0, 3.0]))
            .attribute("kernel_type", Attribute::String(b"RBF".to_vec()))
            .attribute("post_transform", Attribute::String(b"NONE".to_vec()))
            .attribute("rho", Attribute::Floats(vec![-0.36815906]))
            .attribute(
                "support_vectors",
                Attribute::Floats(vec![2.0, -2.6, -2.0, -0.2, 0.4, -0.6, -0.5, -0.2, -0.9, 3.3]),
            )
            .attribute("vectors_per_class", Attribute::Ints(vec![2, 3]))
            .input(tensor(&[3, 2], &[2.0f32, -2.6, 0.4, -0.6, -0.5, -0.2]))
            .output(tensor(&[3], &[0i64, 1, 1]))
            .output(tensor(&[3, 2], &[-0.4198239f32, 0.4198239, 0.99999994, -0.99999994, 0.9962671, -0.9962671]))
            .within(1e-3, 1e-4),
        Case::new("probabilities", &OPERATOR, 3)
            .attribute("classlabels_ints", Attribute::Ints(vec![0, 1, 2]))
            .attribute(
                "coefficients",
                Attribute::Floats(vec![
                    0.23671876,
                    0.2955312,
                    -0.5,
                    -0.032249983,
                    -0.4154871,
                    -0.5,
                    0.4154871,
                    0.5,
                    0.5,
                    0.20975962,
                    -0.42722574,
                    -0.28253388,
                ]),
            )
            .attribute("kernel_params", Attribute::Floats(vec![0.21959923, 0.0, 3.0]))
            .attribute("kernel_type", Attribute::String(b"LINEAR".to_vec()))
            .attribute("post_transform", Attribute::String(b"NONE".to_vec()))
            .attribute("rho", Attribute::Floats(vec![0.32692003, -1.2100749, -0.79760325]))
            .attribute(
                "support_vectors",
                Attribute::Floats(vec![2.0, -2.6, -2.0, -0.2, 0.4, -0.6, -0.9, 3.3, -0.5, -0.2, 0.2, -0.4]),
            )
            .attribute("vectors_per_class", Attribute::Ints(vec![2, 2, 2]))
            .attribute("prob_a", Attribute::Floats(vec![-1.0, -1.5, -0.5]))
            .attribute("prob_b", Attribute::Floats(vec![0.1, 0.0, -0.2]))
            .input(tensor(&[3, 2], &[2.0f32, -2.6, 0.4, -0.6, -0.5, -0.2]))
            .output(tensor(&[3], &[0i64, 2, 2]))
            .output(tensor(
                &[3, 3],
                &[
                    0.63135767f32,
                    0.18279289,
                    0.18584952,
                    0.23799542,
                    0.26583126,
                    0.49617347,
                    0.19744122,
                    0.27308607,
                    0.5294727,
                ],
            ))
            .within(1e-3, 1e-4),
    ]
}
