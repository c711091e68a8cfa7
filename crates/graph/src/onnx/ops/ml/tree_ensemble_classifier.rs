use super::scores::{Labels, PostTransform, infer_classifier, largest, rows, scores_tensor};
use super::trees::{Aggregate, Forest, Trees, numbers_of};
use crate::onnx::case::{strings, tensor};
use crate::onnx::{Attribute, Attributes, Case, Operator};
use crate::ops::{Call, Facts};
use crate::{Fact, OpError};
use halimede_tensor::Value;

/// The class that an ensemble of trees favours, and all scores (ai.onnx.ml TreeEnsembleClassifier,
/// opset 3).
pub static OPERATOR: Operator =
    Operator::in_domain("ai.onnx.ml", "TreeEnsembleClassifier").evaluate(evaluate).infer(infer).cases(cases);

fn labels(attributes: &Attributes) -> Result<Labels, OpError> {
    Labels::read(attributes, "classlabels_int64s", "classlabels_strings")
}

/// What an evaluation needs of the attributes.
struct Classifier {
    labels: Labels,
    trees: Forest,
    base: Vec<f64>,
    transform: PostTransform,
    /// Leaves that all speak of one of two classes mean the second one.
    binary: bool,
    all_positive: bool,
}

fn read(call: &Call) -> Result<Classifier, OpError> {
    let attributes = &call.attributes;
    let labels = labels(attributes)?;
    let trees = Trees::read_numbered(attributes, "class")?.forest(labels.len())?;
    let first = trees.weights.first().map(|(class, _)| *class);
    let binary = labels.len() == 2 && trees.weights.iter().all(|(class, _)| Some(*class) == first);
    let all_positive = trees.weights.iter().all(|(_, weight)| *weight >= 0.0);
    let (base, transform) = (numbers_of(attributes, "base_values")?, PostTransform::read(attributes)?);
    Ok(Classifier { labels, trees, base, transform, binary, all_positive })
}

fn evaluate(call: &Call, inputs: &[Option<Value>]) -> Result<Vec<Value>, OpError> {
    let (x, _, width) = rows(inputs)?;
    let Classifier { labels, trees, base, transform, binary, all_positive } = call.parsed(read)?;
    trees.check(width)?;
    let mut said = vec![None; labels.len()];
    let (mut classes, mut scores) = (Vec::new(), Vec::new());
    for row in x.chunks_exact(width.max(1)) {
        trees.predict(row, Aggregate::Sum, &mut said);
        if *binary {
            let score = said.iter().flatten().sum::<f64>() + base.last().copied().unwrap_or(0.0);
            classes.push(usize::from(score > if *all_positive { 0.5 } else { 0.0 }));
            scores.push(transform.expand(score, *all_positive));
            continue;
        }
        let start = |class: usize| base.get(class).copied().unwrap_or(0.0);
        let mut result: Vec<f64> = said.iter().enumerate().map(|(i, said)| said.unwrap_or(0.0) + start(i)).collect();
        classes.push(largest(&result));
        transform.apply(&mut result);
        scores.push(result);
    }
    Ok(vec![labels.pick(&classes)?.into(), scores_tensor(scores)?.into()])
}

fn infer(call: &Call, inputs: &[Option<&Fact>]) -> Result<Facts, OpError> {
    Ok(infer_classifier(labels(&call.attributes)?.dtype(), inputs))
}

fn cases() -> Vec<Case> {
    vec![
        Case::new("three classes", &OPERATOR, 3)
            .attribute("class_ids", Attribute::Ints(vec![0, 1, 2, 0, 1, 2]))
            .attribute("class_nodeids", Attribute::Ints(vec![1, 1, 1, 2, 2, 2]))
            .attribute("class_treeids", Attribute::Ints(vec![0, 0, 0, 0, 0, 0]))
            .attribute("class_weights", Attribute::Floats(vec![1.0, 0.0, 0.0, 0.2, 0.4, 0.4]))
            .attribute("classlabels_int64s", Attribute::Ints(vec![0, 1, 2]))
            .attribute("nodes_falsenodeids", Attribute::Ints(vec![2, 0, 0]))
            .attribute("nodes_featureids", Attribute::Ints(vec![1, 0, 0]))
            .attribute("nodes_hitrates", Attribute::Floats(vec![1.0, 1.0, 1.0]))
            .attribute("nodes_missing_value_tracks_true", Attribute::Ints(vec![0, 0, 0]))
            .attribute(
                "nodes_modes",
                Attribute::Strings(vec![b"BRANCH_LEQ".to_vec(), b"LEAF".to_vec(), b"LEAF".to_vec()]),
            )
            .attribute("nodes_nodeids", Attribute::Ints(vec![0, 1, 2]))
            .attribute("nodes_treeids", Attribute::Ints(vec![0, 0, 0]))
            .attribute("nodes_truenodeids", Attribute::Ints(vec![1, 0, 0]))
            .attribute("nodes_values", Attribute::Floats(vec![-0.65000004, 0.0, 0.0]))
            .attribute("post_transform", Attribute::String(b"NONE".to_vec()))
            .input(tensor(&[3, 2], &[2.0f32, -2.6, 0.4, -0.6, -0.5, -0.2]))
            .output(tensor(&[3], &[0i64, 1, 1]))
            .output(tensor(&[3, 3], &[1.0f32, 0.0, 0.0, 0.2, 0.4, 0.4, 0.2, 0.4, 0.4]))
            .within(1e-4, 1e-5),
        Case::new("both of two classes", &OPERATOR, 3)
            .attribute("class_ids", Attribute::Ints(vec![0, 0]))
            .attribute("class_nodeids", Attribute::Ints(vec![1, 2]))
            .attribute("class_treeids", Attribute::Ints(vec![0, 0]))
            .attribute("class_weights", Attribute::Floats(vec![0.8, 0.0]))
            .attribute("classlabels_int64s", Attribute::Ints(vec![0, 1]))
            .attribute("nodes_falsenodeids", Attribute::Ints(vec![2, 0, 0]))
            .attribute("nodes_featureids", Attribute::Ints(vec![0, 0, 0]))
            .attribute("nodes_hitrates", Attribute::Floats(vec![1.0, 1.0, 1.0]))
            .attribute("nodes_missing_value_tracks_true", Attribute::Ints(vec![0, 0, 0]))
            .attribute(
                "nodes_modes",
                Attribute::Strings(vec![b"BRANCH_LEQ".to_vec(), b"LEAF".to_vec(), b"LEAF".to_vec()]),
            )
            .attribute("nodes_nodeids", Attribute::Ints(vec![0, 1, 2]))
            .attribute("nodes_treeids", Attribute::Ints(vec![0, 0, 0]))
            .attribute("nodes_truenodeids", Attribute::Ints(vec![1, 0, 0]))
            .attribute("nodes_values", Attribute::Floats(vec![0.75, 0.0, 0.0]))
            .attribute("post_transform", Attribute::String(b"NONE".to_vec()))
            .input(tensor(&[3, 2], &[2.0f32, -2.6, 0.4, -0.6, -0.5, -0.2]))
            .output(tensor(&[3], &[0i64, 1, 1]))
            .output(tensor(&[3, 2], &[1.0f32, 0.0, 0.19999999, 0.8, 0.19999999, 0.8]))
            .within(1e-4, 1e-5),
        Case::new("one score of either sign", &OPERATOR, 3)
            .attribute("nodes_treeids", Attribute::Ints(vec![0, 0, 0]))
            .attribute("nodes_nodeids", Attribute::Ints(vec![0, 1, 2]))
            .attribute("nodes_featureids", Attribute::Ints(vec![0, 0, 0]))
            .attribute(
                "nodes_modes",
                Attribute::Strings(vec![b"BRANCH_LT".to_vec(), b"LEAF".to_vec(), b"LEAF".to_vec()]),
            )
            .attribute("nodes_values", Attribute::Floats(vec![0.0, 0.0, 0.0]))
            .attribute("nodes_truenodeids", Attribute::Ints(vec![1, 0, 0]))
            .attribute("nodes_falsenodeids", Attribute::Ints(vec![2, 0, 0]))
            .attribute("class_treeids", Attribute::Ints(vec![0, 0]))
            .attribute("class_nodeids", Attribute::Ints(vec![1, 2]))
            .attribute("class_ids", Attribute::Ints(vec![0, 0]))
            .attribute("class_weights", Attribute::Floats(vec![-1.5, 0.75]))
            .attribute("classlabels_int64s", Attribute::Ints(vec![3, 4]))
            .attribute("post_transform", Attribute::String(b"LOGISTIC".to_vec()))
            .input(tensor(&[2, 1], &[-1.0f32, 1.0]))
            .output(tensor(&[2], &[3i64, 4]))
            .output(tensor(&[2, 2], &[0.81757444f32, 0.18242556, 0.3208213, 0.6791787]))
            .within(1e-4, 1e-5),
        Case::new("one probability", &OPERATOR, 3)
            .attribute("nodes_treeids", Attribute::Ints(vec![0, 0, 0]))
            .attribute("nodes_nodeids", Attribute::Ints(vec![0, 1, 2]))
            .attribute("nodes_featureids", Attribute::Ints(vec![0, 0, 0]))
            .attribute(
                "nodes_modes",
                Attribute::Strings(vec![b"BRANCH_LT".to_vec(), b"LEAF".to_vec(), b"LEAF".to_vec()]),
            )
            .attribute("nodes_values", Attribute::Floats(vec![0.0, 0.0, 0.0]))
            .attribute("nodes_truenodeids", Attribute::Ints(vec![1, 0, 0]))
            .attribute("nodes_falsenodeids", Attribute::Ints(vec![2, 0, 0]))
            .attribute("class_treeids", Attribute::Ints(vec![0, 0]))
            .attribute("class_nodeids", Attribute::Ints(vec![1, 2]))
            .attribute("class_ids", Attribute::Ints(vec![0, 0]))
            .attribute("class_weights", Attribute::Floats(vec![0.25, 0.75]))
            .attribute("post_transform", Attribute::String(b"NONE".to_vec()))
            .attribute("classlabels_strings", Attribute::Strings(vec![b"no".to_vec(), b"yes".to_vec()]))
            .input(tensor(&[2, 1], &[-1.0f32, 1.0]))
            .output(strings(&[2], &["no", "yes"]))
            .output(tensor(&[2, 2], &[0.75f32, 0.25, 0.25, 0.75]))
            .within(1e-4, 1e-5),
    ]
}
