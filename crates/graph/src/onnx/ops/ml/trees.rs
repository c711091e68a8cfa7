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

/// A branching as a model writes it.
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

/// A branching to walk over: 32 bytes, so that two share a cache line.
#[derive(Debug)]
struct Step {
    value: f64,
    feature: u32,
    mode: Mode,
    missing_is_true: bool,
    /// Into [`Forest::sets`], for [`Mode::Member`].
    set: u32,
    /// The next step where the condition is false and where it is true; a leaf where negative.
    next: [i32; 2],
}

/// Trees to walk over: checked, so that every walk ends at a leaf.
#[derive(Debug)]
pub struct Forest {
    roots: Vec<i32>,
    steps: Vec<Step>,
    sets: Vec<Vec<f64>>,
    /// Ranges of `weights`.
    leaves: Vec<(u32, u32)>,
    /// Per leaf its targets or classes with what they get.
    pub weights: Vec<(usize, f64)>,
    /// One past the largest feature that is read.
    width: usize,
}

impl Forest {
    /// The leaf that a row ends at.
    fn leaf(&self, root: i32, row: &[f64]) -> &[(usize, f64)] {
        let mut at = root;
        while at >= 0 {
            let step = &self.steps[at as usize];
            let x = row[step.feature as usize];
            let holds = match step.mode {
                Mode::LessOrEqual => x <= step.value,
                Mode::Less => x < step.value,
                Mode::GreaterOrEqual => x >= step.value,
                Mode::Greater => x > step.value,
                Mode::Equal => x == step.value,
                Mode::NotEqual => x != step.value,
                Mode::Member => self.sets[step.set as usize].contains(&x),
            };
            at = step.next[usize::from(holds || (step.missing_is_true && x.is_nan()))];
        }
        let (start, end) = self.leaves[!at as usize];
        &self.weights[start as usize..end as usize]
    }

    /// What the trees say of a row, per target; `None` where no leaf spoke of one.
    pub fn predict(&self, row: &[f64], aggregate: Aggregate, results: &mut [Option<f64>]) {
        results.fill(None);
        for &root in &self.roots {
            for &(target, weight) in self.leaf(root, row) {
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
    }

    /// An error where a tree reads a feature that rows have not.
    pub fn check(&self, width: usize) -> Result<(), OpError> {
        match self.width > width {
            true => Err(OpError::invalid(format!("a tree reads feature {} of {width}", self.width - 1))),
            false => Ok(()),
        }
    }
}

/// An ensemble as a model writes it.
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
    /// The trees in the form to walk over. An error where a leaf speaks of a target that is not there or a
    /// walk would never end.
    pub fn forest(self, targets: usize) -> Result<Forest, OpError> {
        if let Some((target, _)) = self.weights.iter().find(|(target, _)| *target >= targets) {
            return Err(OpError::invalid(format!("a leaf speaks of target {target} of {targets}")));
        }
        self.check_walks()?;
        let too_many = || OpError::invalid("an ensemble of more than 2^31 nodes");
        i32::try_from(self.nodes.len().max(self.weights.len())).map_err(|_| too_many())?;
        let mut leaves = Vec::new();
        let mut place = |target: Target| match target {
            Target::Node(node) => node as i32,
            Target::Leaf(start, end) => {
                leaves.push((start as u32, end as u32));
                !(leaves.len() as i32 - 1)
            }
        };
        let roots = self.roots.into_iter().map(&mut place).collect();
        let (mut steps, mut sets) = (Vec::with_capacity(self.nodes.len()), Vec::new());
        let mut width = 0;
        for node in self.nodes {
            let feature = u32::try_from(node.feature)
                .map_err(|_| OpError::invalid(format!("a tree reads feature {}", node.feature)))?;
            width = width.max(node.feature + 1);
            if node.mode == Mode::Member {
                sets.push(node.members);
            }
            steps.push(Step {
                value: node.value,
                feature,
                mode: node.mode,
                missing_is_true: node.missing_is_true,
                set: (sets.len() as u32).saturating_sub(1),
                next: [place(node.if_false), place(node.if_true)],
            });
        }
        Ok(Forest { roots, steps, sets, leaves, weights: self.weights, width })
    }

    /// An error where a node leads back to itself.
    fn check_walks(&self) -> Result<(), OpError> {
        #[derive(Clone, Copy, PartialEq)]
        enum Seen {
            Never,
            Above,
            Done,
        }
        let mut seen = vec![Seen::Never; self.nodes.len()];
        // Nodes on the way down, each with the number of its targets already followed.
        let mut path: Vec<(usize, usize)> = Vec::new();
        let starts =
            self.roots.iter().filter_map(|root| if let Target::Node(node) = root { Some(*node) } else { None });
        for start in starts.collect::<Vec<_>>() {
            if seen[start] == Seen::Never {
                seen[start] = Seen::Above;
                path.push((start, 0));
            }
            while let Some((node, followed)) = path.last_mut() {
                let next = match *followed {
                    0 => self.nodes[*node].if_true,
                    1 => self.nodes[*node].if_false,
                    _ => {
                        seen[*node] = Seen::Done;
                        path.pop();
                        continue;
                    }
                };
                *followed += 1;
                if let Target::Node(next) = next {
                    match seen[next] {
                        Seen::Above => return Err(OpError::invalid("a tree runs in a circle")),
                        Seen::Never => {
                            seen[next] = Seen::Above;
                            path.push((next, 0));
                        }
                        Seen::Done => {}
                    }
                }
            }
        }
        Ok(())
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

#[cfg(test)]
mod tests {
    use super::*;

    fn branch(if_true: Target, if_false: Target) -> Branch {
        let mode = Mode::LessOrEqual;
        Branch { feature: 1, mode, value: 0.5, members: Vec::new(), missing_is_true: true, if_true, if_false }
    }

    #[test]
    fn walks_end_at_leaves() {
        let nodes = vec![branch(Target::Leaf(0, 1), Target::Node(1)), branch(Target::Leaf(1, 2), Target::Leaf(0, 2))];
        let weights = vec![(0, 1.0), (1, 2.0)];
        let trees = Trees { roots: vec![Target::Node(0), Target::Node(1)], nodes, weights };
        let forest = trees.forest(2).unwrap();
        let mut said = [None; 2];
        forest.predict(&[9.0, f64::NAN], Aggregate::Sum, &mut said);
        assert_eq!(said, [Some(1.0), Some(2.0)]);
        forest.predict(&[9.0, 1.0], Aggregate::Average, &mut said);
        assert_eq!(said, [Some(1.0), Some(2.0)]);
        assert!(forest.check(1).unwrap_err().to_string().contains("feature 1 of 1"));
    }

    #[test]
    fn what_never_ends_or_leads_nowhere_is_refused() {
        let looped = Trees {
            roots: vec![Target::Node(0)],
            nodes: vec![branch(Target::Node(1), Target::Leaf(0, 0)), branch(Target::Node(0), Target::Leaf(0, 0))],
            weights: Vec::new(),
        };
        assert!(looped.forest(1).unwrap_err().to_string().contains("circle"));
        let outside = Trees { roots: vec![Target::Leaf(0, 1)], nodes: Vec::new(), weights: vec![(3, 1.0)] };
        assert!(outside.forest(2).unwrap_err().to_string().contains("target 3 of 2"));
    }
}
