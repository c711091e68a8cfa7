//! The search for what has to stay exact.

use super::compare::{Answers, Difference};
use super::{Guard, Verdict};
use crate::{CompileError, Model};
use std::collections::BTreeSet;

/// Operations next to each other are tried together, in at most so many groups: each trial compiles the model and
/// runs it.
const GROUPS_MAX: usize = 24;

impl Guard<'_> {
    /// Gives the groups of operations that do most harm by themselves back their bits, as few as will do.
    pub(super) fn demote(
        &self,
        exact: &Model,
        answers: &Answers,
        reduced: Vec<String>,
        mut differences: Vec<Difference>,
    ) -> Result<(Option<Model>, Verdict), CompileError> {
        let ended = || Ok((None, Verdict::Untested("the comparison was ended".to_owned())));
        let groups: Vec<&[String]> = reduced.chunks(reduced.len().div_ceil(GROUPS_MAX)).collect();
        let mut harm: Vec<(f64, &[String])> = Vec::with_capacity(groups.len());
        for group in &groups {
            if !(self.is_wanted)() {
                return ended();
            }
            let others = reduced.iter().filter(|name| !group.contains(name));
            let model = self.compile(exact, self.options.exact_nodes.iter().chain(others).cloned().collect())?;
            let cosine = answers.compare(&model).map_or(0.0, |differences| worst(&differences));
            harm.push((cosine, group));
        }
        harm.sort_by(|a, b| a.0.total_cmp(&b.0));
        // The fewest groups that will do, by halving; with every group there is nothing left to gain.
        let (mut too_few, mut enough) = (0, groups.len());
        let mut best = None;
        while enough - too_few > 1 {
            if !(self.is_wanted)() {
                return ended();
            }
            let count = (too_few + enough) / 2;
            let demoted = harm[..count].iter().flat_map(|(_, group)| *group);
            let exact_nodes: BTreeSet<String> = self.options.exact_nodes.iter().chain(demoted).cloned().collect();
            let model = self.compile(exact, exact_nodes.clone())?;
            match answers.compare(&model) {
                Ok(found) if self.is_within(&found) => {
                    enough = count;
                    best = Some((model, Verdict::Within { exact_nodes, differences: found }));
                }
                Ok(found) => {
                    too_few = count;
                    differences = found;
                }
                Err(_) => too_few = count,
            }
        }
        Ok(match best {
            Some((model, verdict)) => (Some(model), verdict),
            None => (None, Verdict::Beyond(differences)),
        })
    }
}

/// The smallest cosine.
fn worst(differences: &[Difference]) -> f64 {
    differences.iter().fold(1.0, |worst, difference| worst.min(difference.cosine))
}
