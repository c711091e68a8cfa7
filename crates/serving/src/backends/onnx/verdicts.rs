//! What was found out about models, kept in files, so that the next start need not find it out again.

use halimede_compute::{Budget, CompileOptions, ComputeUnit, Difference, Verdict, fingerprint::of_values};
use halimede_graph::Range;
use halimede_tensor::Value;
use serde::{Deserialize, Serialize};
use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    hash::Hasher,
    io,
    path::{Path, PathBuf},
    process,
};

/// A folder of verdicts; without a folder nothing is remembered.
#[derive(Debug, Clone)]
pub(super) struct Verdicts(pub Option<PathBuf>);

/// What a verdict is about: a model, where it runs, and what it was asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Key(String);

/// A verdict as it lies in a file. What could not be tested is tried again.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Kept {
    Within {
        precision: String,
        exact_nodes: BTreeSet<String>,
        /// Smallest and largest of what they multiply.
        integers: BTreeMap<String, (f32, f32)>,
        floats: BTreeSet<String>,
        differences: Vec<KeptDifference>,
    },
    Beyond {
        differences: Vec<KeptDifference>,
    },
}

#[derive(Debug, Serialize, Deserialize)]
struct KeptDifference {
    output: String,
    cosine: f64,
    largest: f64,
}

impl Key {
    /// The key of a model by the fingerprint that its graph has after the passes.
    pub fn new(
        fingerprint: u128,
        unit: &dyn ComputeUnit,
        options: &CompileOptions,
        budget: &Budget,
        samples: &[Vec<Value>],
    ) -> Self {
        // The unit's layouts stand for its numbers too: they tell versions, machines and tuned configurations apart.
        let rest = format!(
            "{} {} {options:?} {budget:?} {}",
            unit.name(),
            unit.layouts(options),
            of_values(samples.iter().flatten()),
        );
        let mut hash = std::hash::DefaultHasher::new();
        hash.write(rest.as_bytes());
        Self(format!("{:032x}-{:016x}", fingerprint, hash.finish()))
    }
}

impl Verdicts {
    /// What is known; nothing where a file cannot be read.
    pub fn find(&self, key: &Key) -> Option<Verdict> {
        let text = fs::read(self.file(key)?).ok()?;
        Some(match serde_json::from_slice(&text).ok()? {
            Kept::Within { precision, exact_nodes, integers, floats, differences } => {
                let integers = integers.into_iter().map(|(name, (min, max))| (name, Range { min, max })).collect();
                let options = CompileOptions { precision: precision.parse().ok()?, exact_nodes, integers };
                let differences = differences.into_iter().map(Difference::from).collect();
                Verdict::Within { options, floats, differences }
            }
            Kept::Beyond { differences } => Verdict::Beyond(differences.into_iter().map(Difference::from).collect()),
        })
    }

    /// Remembers a verdict that is one.
    pub fn keep(&self, key: &Key, verdict: &Verdict) -> io::Result<()> {
        let listed = |differences: &[Difference]| differences.iter().map(KeptDifference::from).collect();
        let kept = match verdict {
            Verdict::Within { options, floats, differences } => {
                let integers = options.integers.iter().map(|(name, range)| (name.clone(), (range.min, range.max)));
                Kept::Within {
                    precision: options.precision.to_string(),
                    exact_nodes: options.exact_nodes.clone(),
                    integers: integers.collect(),
                    floats: floats.clone(),
                    differences: listed(differences),
                }
            }
            Verdict::Beyond(differences) => Kept::Beyond { differences: listed(differences) },
            Verdict::Untested(_) | Verdict::Same => return Ok(()),
        };
        let Some(file) = self.file(key) else { return Ok(()) };
        // Another server may read the same folder: the file appears when it is whole.
        let unfinished = file.with_extension(format!("{}.tmp", process::id()));
        fs::create_dir_all(file.parent().unwrap_or(Path::new(".")))?;
        fs::write(&unfinished, serde_json::to_vec_pretty(&kept)?)?;
        fs::rename(&unfinished, &file)
    }

    fn file(&self, key: &Key) -> Option<PathBuf> {
        Some(self.0.as_ref()?.join(format!("{}.json", key.0)))
    }
}

impl From<&Difference> for KeptDifference {
    fn from(found: &Difference) -> Self {
        // JSON has no infinity.
        Self { output: found.output.clone(), cosine: found.cosine, largest: found.largest.min(f64::MAX) }
    }
}

impl From<KeptDifference> for Difference {
    fn from(kept: KeptDifference) -> Self {
        Self { output: kept.output, cosine: kept.cosine, largest: kept.largest }
    }
}
