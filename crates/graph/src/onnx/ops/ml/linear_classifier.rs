use super::linear_regressor::weighted_sums;
use super::scores::{Labels, PostTransform, infer_classifier, largest, rows, scores_tensor};
use crate::onnx::case::{strings, tensor};
use crate::onnx::{Attribute, Attributes, Case, Operator};
use crate::ops::{Call, Facts};
use crate::{Fact, OpError};
use halimede_tensor::Value;

/// The class with the largest weighted sum of features, and all scores (ai.onnx.ml LinearClassifier,
/// opset 1).
pub static OPERATOR: Operator =
    Operator::in_domain("ai.onnx.ml", "LinearClassifier").evaluate(evaluate).infer(infer).cases(cases);

fn labels(attributes: &Attributes) -> Result<Labels, OpError> {
    Labels::read(attributes, "classlabels_ints", "classlabels_strings")
}

fn evaluate(call: &Call, inputs: &[Option<Value>]) -> Result<Vec<Value>, OpError> {
    let (x, _, width) = rows(inputs)?;
    let labels = labels(&call.attributes)?;
    let transform = PostTransform::read(&call.attributes)?;
    let coefficients = call.attributes.floats("coefficients")?.map_or(0, <[f32]>::len);
    let targets = coefficients.checked_div(width).unwrap_or(0);
    let (mut classes, mut scores) = (Vec::new(), Vec::new());
    for mut row in weighted_sums(call, &x, width, targets)? {
        match row[..] {
            // One score decides between two classes.
            [score] => {
                let hit = score > 0.0;
                classes.push(if labels.len() == 2 {
                    usize::from(hit)
                } else if hit {
                    0
                } else {
                    labels.len()
                });
                scores.push(if labels.len() == 2 {
                    transform.expand(score, false)
                } else {
                    transformed(transform, row)
                });
            }
            _ => {
                classes.push(largest(&row));
                transform.apply(&mut row);
                scores.push(row);
            }
        }
    }
    Ok(vec![labels.pick(&classes)?.into(), scores_tensor(scores)?.into()])
}

fn transformed(transform: PostTransform, mut row: Vec<f64>) -> Vec<f64> {
    transform.apply(&mut row);
    row
}

fn infer(call: &Call, inputs: &[Option<&Fact>]) -> Result<Facts, OpError> {
    Ok(infer_classifier(labels(&call.attributes)?.dtype(), inputs))
}

fn cases() -> Vec<Case> {
    vec![
        Case::new("three classes", &OPERATOR, 3)
            .attribute("coefficients", Attribute::Floats(vec![1.0, 2.0, 3.0, -1.0, 0.5, 2.0, 0.1, 0.2, 0.3]))
            .attribute("intercepts", Attribute::Floats(vec![0.5, -0.5, 0.0]))
            .attribute("classlabels_ints", Attribute::Ints(vec![4, 5, 6]))
            .attribute("post_transform", Attribute::String(b"SOFTMAX".to_vec()))
            .input(tensor(&[2, 3], &[1.0f32, -2.0, 0.5, 0.0, 3.0, -1.0]))
            .output(tensor(&[2], &[6i64, 4]))
            .output(tensor(&[2, 3], &[0.25340977f32, 0.1537008, 0.5928894, 0.95068675, 0.010561176, 0.038752083]))
            .within(1e-4, 1e-5),
        Case::new("two classes by one score", &OPERATOR, 3)
            .attribute("coefficients", Attribute::Floats(vec![1.0, 2.0, 3.0]))
            .attribute("intercepts", Attribute::Floats(vec![0.5]))
            .attribute("classlabels_strings", Attribute::Strings(vec![b"no".to_vec(), b"yes".to_vec()]))
            .attribute("post_transform", Attribute::String(b"LOGISTIC".to_vec()))
            .input(tensor(&[2, 3], &[1.0f32, -2.0, 0.5, 0.0, 3.0, -1.0]))
            .output(strings(&[2], &["no", "yes"]))
            .output(tensor(&[2, 2], &[0.7310586f32, 0.2689414, 0.029312253, 0.97068775]))
            .within(1e-4, 1e-5),
        Case::new("two classes by two scores", &OPERATOR, 3)
            .attribute("coefficients", Attribute::Floats(vec![1.0, 2.0, 3.0, -1.0, -2.0, -3.0]))
            .attribute("intercepts", Attribute::Floats(vec![0.5, -0.5]))
            .attribute("classlabels_ints", Attribute::Ints(vec![0, 1]))
            .attribute("post_transform", Attribute::String(b"LOGISTIC".to_vec()))
            .input(tensor(&[2, 3], &[1.0f32, -2.0, 0.5, 0.0, 3.0, -1.0]))
            .output(tensor(&[2], &[1i64, 0]))
            .output(tensor(&[2, 2], &[0.26894143f32, 0.7310586, 0.9706878, 0.029312193]))
            .within(1e-4, 1e-5),
    ]
}
