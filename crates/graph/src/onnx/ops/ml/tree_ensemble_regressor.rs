use super::super::common::room;
use super::scores::{PostTransform, infer_regressor, rows, scores_tensor};
use super::trees::{Aggregate, Forest, Trees, numbers_of};
use crate::OpError;
use crate::onnx::case::tensor;
use crate::onnx::{Attribute, Case, Operator};
use crate::ops::Call;
use halimede_tensor::Value;

/// What an ensemble of trees says of each target (ai.onnx.ml TreeEnsembleRegressor, opset 3).
pub static OPERATOR: Operator =
    Operator::in_domain("ai.onnx.ml", "TreeEnsembleRegressor").evaluate(evaluate).infer(infer_regressor).cases(cases);

/// What an evaluation needs of the attributes.
struct Regressor {
    trees: Forest,
    targets: usize,
    aggregate: Aggregate,
    base: Vec<f64>,
    transform: PostTransform,
}

fn read(call: &Call) -> Result<Regressor, OpError> {
    let attributes = &call.attributes;
    let targets = attributes.int_or("n_targets", 1)?.max(0) as usize;
    let trees = Trees::read_numbered(attributes, "target")?.forest(targets)?;
    let aggregate = match attributes.text_or("aggregate_function", "SUM")? {
        "SUM" => Aggregate::Sum,
        "AVERAGE" => Aggregate::Average,
        "MIN" => Aggregate::Min,
        "MAX" => Aggregate::Max,
        other => return Err(OpError::invalid(format!("aggregate_function is '{other}'"))),
    };
    let (base, transform) = (numbers_of(attributes, "base_values")?, PostTransform::read(attributes)?);
    Ok(Regressor { trees, targets, aggregate, base, transform })
}

fn evaluate(call: &Call, inputs: &[Option<Value>]) -> Result<Vec<Value>, OpError> {
    let (x, _, width) = rows(inputs)?;
    let Regressor { trees, targets, aggregate, base, transform } = call.parsed(read)?;
    trees.check(width)?;
    room(&[*targets])?;
    let mut said = vec![None; *targets];
    let mut results = Vec::new();
    for row in x.chunks_exact(width.max(1)) {
        trees.predict(row, *aggregate, &mut said);
        let start = |target: usize| base.get(target).copied().unwrap_or(0.0);
        let mut scores: Vec<f64> = said.iter().enumerate().map(|(i, said)| said.unwrap_or(0.0) + start(i)).collect();
        transform.apply(&mut scores);
        results.push(scores);
    }
    Ok(vec![scores_tensor(results)?.into()])
}

fn cases() -> Vec<Case> {
    vec![
        Case::new("one tree", &OPERATOR, 3)
            .attribute("n_targets", Attribute::Int(1))
            .attribute("nodes_falsenodeids", Attribute::Ints(vec![2, 0, 4, 0, 0]))
            .attribute("nodes_featureids", Attribute::Ints(vec![1, 0, 0, 0, 0]))
            .attribute("nodes_hitrates", Attribute::Floats(vec![1.0, 1.0, 1.0, 1.0, 1.0]))
            .attribute("nodes_missing_value_tracks_true", Attribute::Ints(vec![0, 0, 0, 0, 0]))
            .attribute(
                "nodes_modes",
                Attribute::Strings(vec![
                    b"BRANCH_LEQ".to_vec(),
                    b"LEAF".to_vec(),
                    b"BRANCH_LEQ".to_vec(),
                    b"LEAF".to_vec(),
                    b"LEAF".to_vec(),
                ]),
            )
            .attribute("nodes_nodeids", Attribute::Ints(vec![0, 1, 2, 3, 4]))
            .attribute("nodes_treeids", Attribute::Ints(vec![0, 0, 0, 0, 0]))
            .attribute("nodes_truenodeids", Attribute::Ints(vec![1, 0, 3, 0, 0]))
            .attribute("nodes_values", Attribute::Floats(vec![-0.65000004, 0.0, -1.5500001, 0.0, 0.0]))
            .attribute("post_transform", Attribute::String(b"NONE".to_vec()))
            .attribute("target_ids", Attribute::Ints(vec![0, 0, 0]))
            .attribute("target_nodeids", Attribute::Ints(vec![1, 3, 4]))
            .attribute("target_treeids", Attribute::Ints(vec![0, 0, 0]))
            .attribute("target_weights", Attribute::Floats(vec![0.0, 0.0, 2.0]))
            .input(tensor(&[4, 2], &[2.0f32, -2.6, 0.4, -0.6, -0.5, -0.2, -2.0, -0.2]))
            .output(tensor(&[4, 1], &[0.0f32, 2.0, 2.0, 0.0])),
        Case::new("a base value, NaN goes where true goes", &OPERATOR, 3)
            .attribute("n_targets", Attribute::Int(1))
            .attribute("nodes_falsenodeids", Attribute::Ints(vec![2, 0, 4, 0, 0]))
            .attribute("nodes_featureids", Attribute::Ints(vec![1, 0, 0, 0, 0]))
            .attribute("nodes_hitrates", Attribute::Floats(vec![1.0, 1.0, 1.0, 1.0, 1.0]))
            .attribute("nodes_missing_value_tracks_true", Attribute::Ints(vec![1, 1, 1, 1, 1]))
            .attribute(
                "nodes_modes",
                Attribute::Strings(vec![
                    b"BRANCH_LEQ".to_vec(),
                    b"LEAF".to_vec(),
                    b"BRANCH_LEQ".to_vec(),
                    b"LEAF".to_vec(),
                    b"LEAF".to_vec(),
                ]),
            )
            .attribute("nodes_nodeids", Attribute::Ints(vec![0, 1, 2, 3, 4]))
            .attribute("nodes_treeids", Attribute::Ints(vec![0, 0, 0, 0, 0]))
            .attribute("nodes_truenodeids", Attribute::Ints(vec![1, 0, 3, 0, 0]))
            .attribute("nodes_values", Attribute::Floats(vec![-0.65000004, 0.0, -1.5500001, 0.0, 0.0]))
            .attribute("post_transform", Attribute::String(b"NONE".to_vec()))
            .attribute("target_ids", Attribute::Ints(vec![0, 0, 0]))
            .attribute("target_nodeids", Attribute::Ints(vec![1, 3, 4]))
            .attribute("target_treeids", Attribute::Ints(vec![0, 0, 0]))
            .attribute("target_weights", Attribute::Floats(vec![0.0, 0.0, 2.0]))
            .attribute("base_values", Attribute::Floats(vec![10.0]))
            .input(tensor(&[1, 2], &[f32::NAN, 0.5]))
            .output(tensor(&[1, 1], &[10.0f32])),
    ]
}
