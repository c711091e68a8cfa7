//! Whether a model in fewer bits still says what it says in f32, and what has to stay exact for that.
//!
//! Rounding is harmless in most models and ruinous in some: nobody can tell from the graph alone. So both
//! forms answer the same inputs, and what they say is compared. Where they differ too much, the operations
//! that do most harm are given back their bits: products of integers become products of 16-bit floats, and where
//! that is not enough, products of those become exact.

mod compare;
mod demote;
pub(crate) mod inputs;

pub use compare::{Comparison, Difference};
pub use inputs::made_up_inputs;

use crate::calibrate::products_of_integers;
use crate::{CompileError, CompileOptions, ComputeUnit, Model, ModelOptions, Precision, calibrated};
use compare::Answers;
use demote::Demotion;
use halimede_graph::Graph;
use halimede_tensor::Value;
use std::collections::BTreeSet;

/// How many times as far as with made-up inputs the values of a model may reach with real ones: what lies beyond is
/// cut off, which costs more than one bit of eight does.
const HEADROOM: f32 = 2.0;

/// How far a model in fewer bits may be off.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Budget {
    /// The cosine of the angle between an output and the exact one, at least.
    pub cosine_min: f64,
    /// What part of the distance from 1 to that a comparison by made-up inputs may find: others are farther off than a few of these.
    pub made_up_part: f64,
}

impl Budget {
    /// What a precision may cost.
    pub fn of(precision: Precision) -> Budget {
        // By two thirds none of 240 images is beyond either bound (MobileNetV2, ResNet-50: `docs/benchmarks/gaps-z.md`).
        Budget { cosine_min: if precision == Precision::Fast { 0.99 } else { 0.999 }, made_up_part: 2.0 / 3.0 }
    }
}

/// What came of a comparison.
#[derive(Debug, Clone, PartialEq)]
pub enum Verdict {
    /// Every output of floats is inside the budget.
    Within {
        /// How it is compiled: which nodes stay exact for it, which products multiply integers.
        options: CompileOptions,
        /// Names of the products that could multiply integers and keep floats for it.
        floats: BTreeSet<String>,
        /// How far each output is off.
        differences: Vec<Difference>,
    },
    /// Some output is not, whatever stays exact.
    Beyond(Vec<Difference>),
    /// Some output could not be compared, and why.
    Untested(String),
    /// The unit computes nothing of the model in fewer bits.
    Same,
}

/// A comparison of a model with its exact form.
pub struct Guard<'a> {
    /// What the model runs on.
    pub unit: &'a dyn ComputeUnit,
    /// The precision to try, and what is to stay exact in any case.
    pub options: CompileOptions,
    /// How far the outputs may be off.
    pub budget: Budget,
    /// Inputs to compare with; some are made up where there are none.
    pub samples: Vec<Vec<Value>>,
    /// Asked before each step of the search, which may take a while: `false` ends it without a verdict.
    pub is_wanted: &'a (dyn Fn() -> bool + Sync),
}

impl Guard<'_> {
    /// The form of the model in fewer bits that is inside the budget, where there is one, and why.
    ///
    /// # Errors
    /// The unit cannot compile the model in that precision.
    pub fn examine(&self, exact: &Model) -> Result<(Option<Model>, Verdict), CompileError> {
        if self.samples.is_empty() {
            // Made-up inputs lie around 0. Real ones may be years or pressures, which few bits cannot tell apart: what
            // multiplies them as they come stays exact until samples show what they are.
            let mut options = self.options.clone();
            options.exact_nodes.extend(inputs::products_of_inputs(exact.graph()));
            return Guard { options, samples: Vec::new(), ..*self }.search(exact);
        }
        self.search(exact)
    }

    fn search(&self, exact: &Model) -> Result<(Option<Model>, Verdict), CompileError> {
        let mut integers = match self.options.precision {
            Precision::Fast => products_of_integers(exact.graph(), self.unit),
            _ => Vec::new(),
        };
        integers.retain(|(name, _)| !self.options.exact_nodes.contains(*name));
        let integers: Vec<String> = integers.into_iter().map(|(name, _)| name.to_owned()).collect();
        let floats = if integers.is_empty() { Some(exact.recompiled(self.unit, &self.options)?) } else { None };
        if floats.as_ref().is_some_and(|floats| floats.reduced().is_empty()) {
            return Ok((None, Verdict::Same));
        }
        let answers = match Answers::new(exact, &self.samples) {
            Ok(answers) => answers,
            Err(reason) => return Ok((None, Verdict::Untested(reason))),
        };
        match floats {
            Some(floats) => self.try_floats(exact, &answers, floats),
            None => self.try_integers(exact, &answers, integers),
        }
    }

    /// The model with as many of these products of integers as do no harm; where any of them does, as balanced
    /// precision has it, within the same budget.
    fn try_integers(
        &self,
        exact: &Model,
        answers: &Answers,
        names: Vec<String>,
    ) -> Result<(Option<Model>, Verdict), CompileError> {
        let mut options = match calibrated(exact.graph(), self.unit, self.options.clone(), &answers.inputs()) {
            Ok(options) => options,
            Err(reason) => return Ok((None, Verdict::Untested(reason.to_string()))),
        };
        if self.samples.is_empty() {
            options.integers.values_mut().for_each(|range| *range = range.widened(HEADROOM));
        }
        let candidate = exact.recompiled(self.unit, &options)?;
        let floats: BTreeSet<String> = names.iter().cloned().collect();
        let form = (&options, Demotion::Floats);
        let differences = match self.try_out(exact, answers, candidate, form, names)? {
            (None, Verdict::Beyond(differences)) => differences,
            tried => return Ok(tried),
        };
        let model = exact.recompiled(self.unit, &self.options)?;
        if model.reduced().is_empty() {
            return Ok((None, Verdict::Beyond(differences)));
        }
        let (model, verdict) = self.try_floats(exact, answers, model)?;
        Ok(match verdict {
            Verdict::Within { options, differences, .. } => (model, Verdict::Within { options, floats, differences }),
            verdict => (model, verdict),
        })
    }

    /// The model as it is without products of integers, or with exact ones among its own.
    fn try_floats(
        &self,
        exact: &Model,
        answers: &Answers,
        candidate: Model,
    ) -> Result<(Option<Model>, Verdict), CompileError> {
        let reduced = candidate.reduced();
        self.try_out(exact, answers, candidate, (&self.options, Demotion::Exact), reduced)
    }

    /// The candidate, compiled by these options, where it is inside the budget, else one in which operations among
    /// `reduced` are demoted.
    fn try_out(
        &self,
        exact: &Model,
        answers: &Answers,
        candidate: Model,
        (options, demotion): (&CompileOptions, Demotion),
        reduced: Vec<String>,
    ) -> Result<(Option<Model>, Verdict), CompileError> {
        let differences = match answers.compare(&candidate) {
            Ok(differences) => differences,
            Err(reason) => return Ok((None, Verdict::Untested(reason))),
        };
        if self.is_within(&differences) {
            let verdict = Verdict::Within { options: options.clone(), floats: BTreeSet::new(), differences };
            return Ok((Some(candidate), verdict));
        }
        drop(candidate);
        self.demote(exact, answers, (options, demotion), reduced, differences)
    }

    fn is_within(&self, differences: &[Difference]) -> bool {
        let Budget { cosine_min, made_up_part } = self.budget;
        let part = if self.samples.is_empty() { made_up_part } else { 1.0 };
        differences.iter().all(|difference| 1.0 - difference.cosine <= (1.0 - cosine_min) * part)
    }
}

impl Model {
    /// Compiles a model in the precision of `options` and compares it with the exact one. Gives the model to
    /// use: the exact one, unless another is inside the budget. There is no verdict where `options` are exact
    /// themselves.
    pub fn compile_guarded(
        graph: Graph,
        unit: &dyn ComputeUnit,
        options: &ModelOptions,
        samples: Vec<Vec<Value>>,
    ) -> Result<(Model, Option<Verdict>), CompileError> {
        let exact = ModelOptions { compile: CompileOptions::default(), ..options.clone() };
        let exact = Model::compile(graph, unit, &exact)?;
        let precision = options.compile.precision;
        if precision == Precision::Exact {
            return Ok((exact, None));
        }
        let guard = Guard {
            unit,
            options: options.compile.clone(),
            budget: Budget::of(precision),
            samples,
            is_wanted: &|| true,
        };
        let (model, verdict) = guard.examine(&exact)?;
        Ok((model.unwrap_or(exact), Some(verdict)))
    }
}
