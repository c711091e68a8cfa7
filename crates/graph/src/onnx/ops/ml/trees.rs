//! Decision trees: reading ensembles, walking to leaves, joining what the leaves say.

use crate::OpError;
use crate::onnx::Attributes;
use std::collections::HashMap;

/// How a node compares a feature with its value.
#[derive(Debug, Clone, Copy, PartialEq)]
#[allow(missing_docs, reason = "named after what they compare")]
pub enum Mode {
    LessOrEqual,
    Less,
    GreaterOrEqual,
    Greater,
    Equal,
    NotEqual,
    /// Whether the feature is one of a set.
    Member,
}

/// Where a walk goes on.
#[derive(Debug, Clone, Copy)]
pub enum Target {
    /// A node of [`Trees::nodes`].
    Node(usize),
    /// A leaf: a range of [`Trees::weights`].
    Leaf(usize, usize),
}

/// A branching.
#[derive(Debug, Clone)]
#[allow(missing_docs, reason = "named after what they hold")]
pub struct Branch {
    pub feature: usize,
    pub mode: Mode,
    pub value: f64,
    /// For [`Mode::Member`].
    pub members: Vec<f64>,
    /// NaN goes where true goes.
    pub missing_is_true: bool,
    pub if_true: Target,
    pub if_false: Target,
}

impl Branch {
    fn next(&self, row: &[f64]) -> Target {
        let x = row[self.feature];
        let holds = match self.mode {
            Mode::LessOrEqual => x <= self.value,
            Mode::Less => x < self.value,
            Mode::GreaterOrEqual => x >= self.value,
            Mode::Greater => x > self.value,
            Mode::Equal => x == self.value,
            Mode::NotEqual => x != self.value,
            Mode::Member => self.members.contains(&x),
        };
        if holds || (self.missing_is_true && x.is_nan()) { self.if_true } else { self.if_false }
    }
}

/// An ensemble.
#[derive(Debug, Default)]
#[allow(missing_docs, reason = "named after what they hold")]
pub struct Trees {
    pub roots: Vec<Target>,
    pub nodes: Vec<Branch>,
    /// Per leaf its targets or classes with what they get.
    pub weights: Vec<(usize, f64)>,
}

/// How the leaves of all trees become one number per target.
#[derive(Debug, Clone, Copy, PartialEq)]
#[allow(missing_docs, reason = "named after what they compute")]
pub enum Aggregate {
    Sum,
    Average,
    Min,
    Max,
}

impl Trees {
    /// What the trees say of a row, per target; `None` where no leaf spoke of one.
    pub fn predict(&self, row: &[f64], targets: usize, aggregate: Aggregate) -> Result<Vec<Option<f64>>, OpError> {
        let mut results: Vec<Option<f64>> = vec![None; targets];
        for &root in &self.roots {
            let mut target = root;
            // A walk longer than there are nodes runs in a circle.
            for _ in 0..=self.nodes.len() {
                match target {
                    Target::Node(node) => target = self.nodes[node].next(row),
                    Target::Leaf(..) => break,
                }
            }
            let Target::Leaf(start, end) = target else { return Err(OpError::invalid("a tree runs in a circle")) };
            for &(target, weight) in &self.weights[start..end] {
                let result = &mut results[target];
                *result = Some(match (*result, aggregate) {
                    (None, _) => weight,
                    (Some(sum), Aggregate::Sum | Aggregate::Average) => sum + weight,
                    (Some(best), Aggregate::Min) => best.min(weight),
                    (Some(best), Aggregate::Max) => best.max(weight),
                });
            }
        }
        if aggregate == Aggregate::Average {
            results.iter_mut().flatten().for_each(|sum| *sum /= self.roots.len().max(1) as f64);
        }
        Ok(results)
    }

    /// An error where a node reads a feature or a leaf speaks of a target that is not there.
    pub fn check(&self, width: usize, targets: usize) -> Result<(), OpError> {
        if let Some(node) = self.nodes.iter().find(|node| node.feature >= width) {
            return Err(OpError::invalid(format!("a tree reads feature {} of {width}", node.feature)));
        }
        match self.weights.iter().find(|(target, _)| *target >= targets) {
            Some((target, _)) => Err(OpError::invalid(format!("a leaf speaks of target {target} of {targets}"))),
            None => Ok(()),
        }
    }

    /// Reads the form of opset 1 and 3, where nodes are named by tree and number, and leaves are nodes.
    /// `prefix` is `target` or `class`.
    pub fn read_numbered(attributes: &Attributes, prefix: &str) -> Result<Trees, OpError> {
        let ints = |name: &str| -> Result<&[i64], OpError> { Ok(attributes.ints(name)?.unwrap_or_default()) };
        let (trees, numbers) = (ints("nodes_treeids")?, ints("nodes_nodeids")?);
        let (features, yes, no) = (ints("nodes_featureids")?, ints("nodes_truenodeids")?, ints("nodes_falsenodeids")?);
        let modes = attributes.strings("nodes_modes")?.unwrap_or_default();
        let values = numbers_of(attributes, "nodes_values")?;
        let missing = ints("nodes_missing_value_tracks_true")?;
        let count = trees.len();
        if [numbers.len(), features.len(), yes.len(), no.len(), modes.len(), values.len()].iter().any(|&n| n != count) {
            return Err(OpError::invalid(format!("the lists of {count} tree nodes differ in length")));
        }

        let mut said: HashMap<(i64, i64), Vec<(usize, f64)>> = HashMap::new();
        let weights = numbers_of(attributes, &format!("{prefix}_weights"))?;
        let ids = ints(&format!("{prefix}_ids"))?;
        let (weight_trees, weight_nodes) = (ints(&format!("{prefix}_treeids"))?, ints(&format!("{prefix}_nodeids"))?);
        for (((&tree, &node), &id), &weight) in weight_trees.iter().zip(weight_nodes).zip(ids).zip(&weights) {
            let id = usize::try_from(id).map_err(|_| OpError::invalid(format!("a leaf speaks of {prefix} {id}")))?;
            said.entry((tree, node)).or_default().push((id, weight));
        }

        // Every node as the target that reaches it; branchings are numbered in the order of the lists.
        let mut result = Trees::default();
        let mut places: HashMap<(i64, i64), Target> = HashMap::with_capacity(count);
        let mut branches = Vec::new();
        for i in 0..count {
            let name = (trees[i], numbers[i]);
            let target = if modes[i] == b"LEAF" {
                let start = result.weights.len();
                result.weights.extend(said.remove(&name).unwrap_or_default());
                Target::Leaf(start, result.weights.len())
            } else {
                branches.push(i);
                Target::Node(branches.len() - 1)
            };
            if i == 0 || trees[i] != trees[i - 1] {
                result.roots.push(target);
            }
            places.insert(name, target);
        }
        for i in branches {
            let reach = |node: i64| {
                let target = places.get(&(trees[i], node)).copied();
                target.ok_or_else(|| OpError::invalid(format!("tree {} has no node {node}", trees[i])))
            };
            result.nodes.push(Branch {
                feature: usize::try_from(features[i]).unwrap_or(usize::MAX),
                mode: mode(&modes[i])?,
                value: values[i],
                members: Vec::new(),
                missing_is_true: missing.get(i) == Some(&1),
                if_true: reach(yes[i])?,
                if_false: reach(no[i])?,
            });
        }
        Ok(result)
    }
}

/// Numbers that stand as a list of floats or as a tensor.
pub fn numbers_of(attributes: &Attributes, name: &str) -> Result<Vec<f64>, OpError> {
    match attributes.tensor(&format!("{name}_as_tensor"))? {
        Some(tensor) => Ok(tensor.to_f64s()?),
        None => Ok(attributes.floats(name)?.unwrap_or_default().iter().map(|&v| v.into()).collect()),
    }
}

fn mode(name: &[u8]) -> Result<Mode, OpError> {
    Ok(match name {
        b"BRANCH_LEQ" => Mode::LessOrEqual,
        b"BRANCH_LT" => Mode::Less,
        b"BRANCH_GTE" => Mode::GreaterOrEqual,
        b"BRANCH_GT" => Mode::Greater,
        b"BRANCH_EQ" => Mode::Equal,
        b"BRANCH_NEQ" => Mode::NotEqual,
        other => return Err(OpError::invalid(format!("a tree node's mode is '{}'", String::from_utf8_lossy(other)))),
    })
}
