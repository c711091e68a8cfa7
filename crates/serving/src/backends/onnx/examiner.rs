//! Models in fewer bits are examined while their exact form serves.

use super::{
    served::Served,
    verdicts::{Key, Verdicts},
};
use halimede_compute::{Budget, CompileOptions, ComputeUnit, Difference, Guard, Model, Precision, Verdict};
use halimede_graph::onnx::import::Files;
use halimede_tensor::Value;
use std::{
    collections::BTreeSet,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, Weak},
};

/// A model to compare with its exact form.
pub(super) struct Examination {
    pub name: String,
    pub served: Weak<Served>,
    /// Its exact form on the unit; the one that is served where `None`.
    pub exact: Option<Arc<Model>>,
    pub unit: Arc<dyn ComputeUnit>,
    /// The precision to try.
    pub options: CompileOptions,
    pub budget: Budget,
    /// Inputs to compare with; some are made up where there are none.
    pub samples: Vec<Vec<Value>>,
    pub key: Key,
    /// What the weights were read from.
    pub files: Files,
}

impl Examination {
    /// Examines the model, which serves exactly until then, and longer where it has to; a panic is told and leaves it
    /// as it was. Gives the options that it is compiled by from now on; `None` where it is gone, or stays in
    /// another form than the exact one.
    pub fn run(&self, verdicts: &Verdicts) -> Option<CompileOptions> {
        let verdict = catch_unwind(AssertUnwindSafe(|| self.examine()))
            .unwrap_or_else(|_| Some(Verdict::Untested("the comparison panicked".to_owned())))?;
        if let (Verdict::Untested(reason), Some(_)) = (&verdict, &self.exact) {
            tracing::warn!("model '{}' stays as it is: {reason}", self.name);
            return None;
        }
        // What is told is remembered: who stops the server on hearing it finds it again.
        let kept = verdicts.keep(&self.key, &verdict);
        report(&self.name, self.options.precision, &verdict);
        if let Err(error) = kept {
            tracing::warn!("what was found out about model '{}' is not remembered: {error}", self.name);
        }
        Some(match verdict {
            Verdict::Within { options, .. } => options,
            _ => CompileOptions::default(),
        })
    }

    /// The verdict, after the form that it allows has taken its place; `None` where the model is gone.
    fn examine(&self) -> Option<Verdict> {
        let exact = match &self.exact {
            Some(exact) => exact.clone(),
            None => self.served.upgrade()?.model(),
        };
        let changed = || Some(Verdict::Untested("its file has changed since it was loaded".to_owned()));
        // Weights are read from the file again: what somebody has written over it since is another model.
        if !self.files.are_unchanged() {
            return changed();
        }
        let guard = Guard {
            unit: self.unit.as_ref(),
            options: self.options.clone(),
            budget: self.budget,
            samples: self.samples.clone(),
            is_wanted: &|| self.served.strong_count() > 0 && self.files.are_unchanged(),
        };
        let examined = guard.examine(&exact);
        self.files.release();
        let served = self.served.upgrade()?;
        if !self.files.are_unchanged() {
            return changed();
        }
        Some(match examined {
            Ok((model, verdict)) => {
                let is_tested = !matches!(verdict, Verdict::Untested(_));
                let instead = self.exact.clone().filter(|_| is_tested);
                model.map(Arc::new).or(instead).into_iter().for_each(|model| served.replace(model));
                verdict
            }
            Err(error) => Verdict::Untested(error.to_string()),
        })
    }
}

/// Says in which precision a model is served, and why.
pub(super) fn report(name: &str, precision: Precision, verdict: &Verdict) {
    let listed =
        |differences: &[Difference]| differences.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ");
    match verdict {
        Verdict::Within { options, floats, differences } => tracing::info!(
            "model '{name}' computes in {precision} precision{}; against exact: {}",
            form(options, floats),
            listed(differences)
        ),
        Verdict::Beyond(differences) => tracing::warn!(
            "model '{name}' computes in exact precision: in {precision} its outputs differ too much; {}",
            listed(differences)
        ),
        Verdict::Untested(reason) => tracing::warn!(
            "model '{name}' computes in exact precision: {precision} could not be compared with it: {reason}"
        ),
        Verdict::Same => tracing::debug!("model '{name}' has nothing to compute in {precision} precision"),
    }
}

/// What of a model computes otherwise than most of it.
fn form(options: &CompileOptions, floats: &BTreeSet<String>) -> String {
    let names = |names: &BTreeSet<String>| names.iter().map(String::as_str).collect::<Vec<_>>().join(", ");
    let mut text = match (options.precision, options.integers.len()) {
        (Precision::Fast, 0) if floats.is_empty() => ", having no product to round to 8 bits".to_owned(),
        (Precision::Fast, count) => format!(", {count} of its products in 8-bit integers"),
        _ => String::new(),
    };
    if !floats.is_empty() {
        let count = floats.len();
        text += &format!(", but for {count} others, which differ too much so and keep floats ({})", names(floats));
    }
    if !options.exact_nodes.is_empty() {
        let count = options.exact_nodes.len();
        text += &format!(", but for {count} of its operations, which stay exact ({})", names(&options.exact_nodes));
    }
    text
}
