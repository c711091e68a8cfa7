use super::super::common::room;
use super::scores::{PostTransform, infer_regressor, rows};
use super::trees::{Aggregate, Branch, Forest, Mode, Target, Trees};
use crate::onnx::case::tensor;
use crate::onnx::{Attribute, Attributes, Case, Operator};
use crate::ops::{Call, Facts};
use crate::{Fact, OpError};
use halimede_tensor::{Tensor, Value};

/// What an ensemble of trees says of each target, with sets as conditions (ai.onnx.ml TreeEnsemble,
/// opset 5).
pub static OPERATOR: Operator =
    Operator::in_domain("ai.onnx.ml", "TreeEnsemble").evaluate(evaluate).infer(infer).cases(cases);

fn read(attributes: &Attributes) -> Result<Trees, OpError> {
    let ints = |name: &str| attributes.required(name, attributes.ints(name)?);
    let numbers = |name: &str| attributes.required(name, attributes.tensor(name)?);
    let (splits, modes) = (numbers("nodes_splits")?.to_f64s()?, numbers("nodes_modes")?.to_i64s()?);
    let features = ints("nodes_featureids")?;
    let (yes, no) = (ints("nodes_truenodeids")?, ints("nodes_falsenodeids")?);
    let (yes_leaf, no_leaf) = (ints("nodes_trueleafs")?, ints("nodes_falseleafs")?);
    let missing = attributes.ints("nodes_missing_value_tracks_true")?.unwrap_or_default();
    let count = modes.len();
    if [splits.len(), features.len(), yes.len(), no.len(), yes_leaf.len(), no_leaf.len()].iter().any(|&n| n != count) {
        return Err(OpError::invalid(format!("the lists of {count} tree nodes differ in length")));
    }
    let (ids, weights) = (ints("leaf_targetids")?, numbers("leaf_weights")?.to_f64s()?);
    if ids.len() != weights.len() {
        return Err(OpError::invalid(format!("{} targets for {} leaves", ids.len(), weights.len())));
    }
    let mut trees = Trees::default();
    for (&id, weight) in ids.iter().zip(weights) {
        let id = usize::try_from(id).map_err(|_| OpError::invalid(format!("a leaf speaks of target {id}")))?;
        trees.weights.push((id, weight));
    }
    let target = |index: i64, leaf: i64, leaves: usize| {
        let found = usize::try_from(index).ok().filter(|&index| index < if leaf != 0 { leaves } else { count });
        let index =
            found.ok_or_else(|| OpError::invalid(format!("a tree node leads to {index}, which is not there")))?;
        Ok::<_, OpError>(if leaf != 0 { Target::Leaf(index, index + 1) } else { Target::Node(index) })
    };
    // The sets stand one after the other, each ended by a NaN.
    let members = attributes.tensor("membership_values")?.map(Tensor::to_f64s).transpose()?.unwrap_or_default();
    let mut sets = members.split(|member| member.is_nan());
    for i in 0..count {
        let mode = mode(modes[i])?;
        let members = if mode == Mode::Member { sets.next().unwrap_or_default().to_vec() } else { Vec::new() };
        trees.nodes.push(Branch {
            feature: usize::try_from(features[i]).unwrap_or(usize::MAX),
            mode,
            value: splits[i],
            members,
            missing_is_true: missing.get(i) == Some(&1),
            if_true: target(yes[i], yes_leaf[i], trees.weights.len())?,
            if_false: target(no[i], no_leaf[i], trees.weights.len())?,
        });
    }
    for &root in ints("tree_roots")? {
        trees.roots.push(target(root, 0, 0)?);
    }
    Ok(trees)
}

fn mode(number: i64) -> Result<Mode, OpError> {
    Ok(match number {
        0 => Mode::LessOrEqual,
        1 => Mode::Less,
        2 => Mode::GreaterOrEqual,
        3 => Mode::Greater,
        4 => Mode::Equal,
        5 => Mode::NotEqual,
        6 => Mode::Member,
        other => return Err(OpError::invalid(format!("a tree node's mode is {other}"))),
    })
}

/// What an evaluation needs of the attributes.
struct Ensemble {
    trees: Forest,
    targets: usize,
    aggregate: Aggregate,
    transform: PostTransform,
}

fn read_call(call: &Call) -> Result<Ensemble, OpError> {
    let attributes = &call.attributes;
    let targets = attributes.required("n_targets", attributes.int("n_targets")?)?.max(0) as usize;
    let trees = read(attributes)?.forest(targets)?;
    let aggregate = match attributes.int_or("aggregate_function", 1)? {
        0 => Aggregate::Average,
        1 => Aggregate::Sum,
        2 => Aggregate::Min,
        3 => Aggregate::Max,
        other => return Err(OpError::invalid(format!("aggregate_function is {other}"))),
    };
    let transform = match attributes.int_or("post_transform", 0)? {
        0 => PostTransform::None,
        1 => PostTransform::Softmax,
        2 => PostTransform::Logistic,
        3 => PostTransform::SoftmaxZero,
        4 => PostTransform::Probit,
        other => return Err(OpError::invalid(format!("post_transform is {other}"))),
    };
    Ok(Ensemble { trees, targets, aggregate, transform })
}

fn evaluate(call: &Call, inputs: &[Option<Value>]) -> Result<Vec<Value>, OpError> {
    let (x, count, width) = rows(inputs)?;
    let Ensemble { trees, targets, aggregate, transform } = call.parsed(read_call)?;
    trees.check(width)?;
    let mut results = Vec::with_capacity(room(&[count.max(1), *targets])?);
    let mut said = vec![None; *targets];
    for row in x.chunks_exact(width.max(1)) {
        trees.predict(row, *aggregate, &mut said);
        let mut scores: Vec<f64> = said.iter().map(|said| said.unwrap_or(0.0)).collect();
        transform.apply(&mut scores);
        results.extend(scores);
    }
    // The result has the datatype of the features.
    let dtype = inputs[0].as_ref().map_or(Ok(halimede_tensor::DType::F32), |x| x.tensor().map(Tensor::dtype))?;
    Ok(vec![Tensor::from_f64s(dtype, &[count, *targets], &results)?.into()])
}

fn infer(call: &Call, inputs: &[Option<&Fact>]) -> Result<Facts, OpError> {
    let mut facts = infer_regressor(call, inputs)?;
    facts[0].dtype = inputs.first().copied().flatten().and_then(|x| x.dtype);
    Ok(facts)
}

fn cases() -> Vec<Case> {
    let numbers = |list: &[f32]| Attribute::Tensor(tensor(&[list.len()], list));
    let ints = |list: &[i64]| Attribute::Ints(list.to_vec());
    let case = Case::new("a condition and a set", &OPERATOR, 5)
        .attribute("n_targets", Attribute::Int(2))
        .attribute("nodes_splits", numbers(&[1.0, 0.0]))
        .attribute("nodes_featureids", ints(&[0, 1]))
        .attribute("nodes_modes", Attribute::Tensor(tensor(&[2], &[0u8, 6])))
        .attribute("membership_values", numbers(&[2.0, 5.0, f32::NAN]))
        .attribute("nodes_truenodeids", ints(&[0, 1]))
        .attribute("nodes_trueleafs", ints(&[1, 1]))
        .attribute("nodes_falsenodeids", ints(&[1, 2]))
        .attribute("nodes_falseleafs", ints(&[0, 1]))
        .attribute("leaf_targetids", ints(&[0, 1, 1]))
        .attribute("leaf_weights", numbers(&[10.0, 20.0, 30.0]))
        .attribute("tree_roots", ints(&[0]))
        .input(tensor(&[3, 2], &[0.5f32, 5.0, 2.0, 5.0, 2.0, 4.0]));
    vec![case.output(tensor(&[3, 2], &[10f32, 0.0, 0.0, 20.0, 0.0, 30.0]))]
}
