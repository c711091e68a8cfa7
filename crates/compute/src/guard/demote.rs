//! The search for what has to keep its bits.

use super::compare::{Answers, Difference};
use super::{Guard, Verdict};
use crate::{CompileError, CompileOptions, Model};
use std::collections::BTreeSet;

/// Operations next to each other are tried together, in at most so many groups: each trial compiles the model and
/// runs it.
const GROUPS_MAX: usize = 24;

/// What operations that have fewer bits are given back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Demotion {
    /// Products of integers become products of floats, as the unit's balanced precision has them.
    Floats,
    /// Products become exact.
    Exact,
}

impl Demotion {
    /// The options where the operations of these names are demoted.
    fn apply<'n>(self, options: &CompileOptions, names: impl Iterator<Item = &'n String>) -> CompileOptions {
        let mut options = options.clone();
        match self {
            Demotion::Floats => {
                let names: BTreeSet<&String> = names.collect();
                options.integers.retain(|name, _| !names.contains(name));
            }
            Demotion::Exact => options.exact_nodes.extend(names.cloned()),
        }
        options
    }
}

impl Guard<'_> {
    /// Gives the groups of operations that do most harm by themselves back their bits, as few as will do. `reduced`
    /// names those that have fewer by `options`.
    pub(super) fn demote(
        &self,
        exact: &Model,
        answers: &Answers,
        (options, demotion): (&CompileOptions, Demotion),
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
            let model = exact.recompiled(self.unit, &demotion.apply(options, others))?;
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
            let demoted = || harm[..count].iter().flat_map(|(_, group)| *group);
            let options = demotion.apply(options, demoted());
            let model = exact.recompiled(self.unit, &options)?;
            match answers.compare(&model) {
                Ok(found) if self.is_within(&found) => {
                    enough = count;
                    let floats: BTreeSet<String> = match demotion {
                        Demotion::Floats => demoted().cloned().collect(),
                        Demotion::Exact => BTreeSet::new(),
                    };
                    best = Some((model, Verdict::Within { options, floats, differences: found }));
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
