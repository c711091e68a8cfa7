//! How a model comes to the form that requests run on: compiled as it is wanted where that is known to be right, else
//! exactly and examined; its packed weights in a file.

use std::sync::{Arc, Weak};

use halimede_compute::{
    Budget, CompileError, CompileOptions, ComputeUnit, Model, ModelOptions, Precision, Verdict,
    packed::{Packer, Store},
    release_memory,
};
use halimede_graph::{Graph, onnx::import::Files};
use halimede_tensor::Value;

use super::{
    examiner::{Examination, report},
    packed::Place,
    served::Served,
    verdicts::{Key, Verdicts},
};

/// What does not depend on the unit that a model runs on.
pub(super) struct Recipe {
    pub name: String,
    /// How its configuration wants it compiled.
    pub wanted: CompileOptions,
    /// Inputs to compare with.
    pub samples: Vec<Vec<Value>>,
    /// Of its graph after the passes; 0 where nothing is kept by it.
    pub fingerprint: u128,
    /// What the weights were read from.
    pub files: Files,
    pub verdicts: Verdicts,
    pub store: Option<Arc<Store>>,
}

/// A model as it was compiled first.
pub(super) struct Compiled {
    pub model: Model,
    /// What is left to do.
    pub rest: Rest,
}

/// What is left to do with a model that serves.
pub(super) struct Rest {
    /// What it was compiled by.
    options: CompileOptions,
    /// Where a verdict is still to be found.
    key: Option<Key>,
    /// Whether its weights come from a file.
    is_packed: bool,
}

impl Rest {
    /// Whether there is anything.
    pub fn is_something(&self, recipe: &Recipe) -> bool {
        self.key.is_some() || (!self.is_packed && recipe.store.is_some())
    }
}

impl Recipe {
    /// Compiles a model for a unit.
    pub fn compile(&self, graph: Graph, unit: &Arc<dyn ComputeUnit>) -> Result<Compiled, CompileError> {
        let wants_integers = self.wanted.precision == Precision::Fast;
        if wants_integers && !unit.describe().precisions.contains(&Precision::Fast) {
            let name = &self.name;
            tracing::warn!("model '{name}' computes in exact precision: nothing here multiplies 8-bit integers fast");
        }
        let mut key = self.key(unit);
        let mut compile = CompileOptions::default();
        if let Some(verdict) = key.as_ref().and_then(|key| self.verdicts.find(key)) {
            report(&self.name, self.wanted.precision, &verdict);
            if let Verdict::Within { options, .. } = verdict {
                compile = options;
            }
            key = None;
        }
        let options = ModelOptions { passes: None, compile };
        let (model, is_packed) = match self.place(unit) {
            Some(place) => place.compile(graph, &options)?,
            None => (Model::compile(graph, unit.as_ref(), &options)?, false),
        };
        self.files.release();
        Ok(Compiled { model, rest: Rest { options: options.compile, key, is_packed } })
    }

    /// Does what is left to do. Gives the options that the model is compiled by from then on; `None` where it is gone.
    pub fn settle(&self, served: &Weak<Served>, unit: &Arc<dyn ComputeUnit>, rest: Rest) -> Option<CompileOptions> {
        let is_to_be_packed = !rest.is_packed || rest.key.is_some();
        let options = match rest.key {
            Some(key) => self.examination(served, unit, key, None).run(&self.verdicts)?,
            None => rest.options,
        };
        if let Some(place) = self.place(unit).filter(|_| is_to_be_packed) {
            place.settle(served, &self.files, &options);
        }
        // Forms that were tried and given up took much more than the one that stays.
        release_memory();
        Some(options)
    }

    /// Serves the model by another unit, which was told more about its kernels: in the form that is right there, which is
    /// examined where nobody knows. Gives the options that it is compiled by from then on; `None` where everything stays as
    /// it was.
    pub fn renew(&self, served: &Weak<Served>, unit: &Arc<dyn ComputeUnit>) -> Option<CompileOptions> {
        let failed = |reason: &dyn std::fmt::Display| {
            tracing::warn!("model '{}' does not use what was tuned before it is loaded again: {reason}", self.name);
            None
        };
        let compile = |options: &CompileOptions| {
            let model = served.upgrade()?.model();
            let compiled = model.repacked(unit.as_ref(), options, &Packer::default());
            self.files.release();
            // What was compiled of another model's weights must not serve.
            match compiled {
                Ok(_) if !self.files.are_unchanged() => failed(&"its file has changed since it was loaded"),
                Ok(model) => Some(Arc::new(model)),
                Err(error) => failed(&error),
            }
        };
        let key = self.key(unit);
        let known = key.as_ref().and_then(|key| self.verdicts.find(key));
        let options = match (key, known) {
            (Some(key), None) => {
                let exact = compile(&CompileOptions::default())?;
                self.examination(served, unit, key, Some(exact)).run(&self.verdicts)?
            }
            (_, known) => {
                let options = match known {
                    Some(Verdict::Within { options, .. }) => options,
                    _ => CompileOptions::default(),
                };
                let model = compile(&options)?;
                served.upgrade()?.replace(model);
                options
            }
        };
        if let Some(place) = self.place(unit) {
            place.settle(served, &self.files, &options);
        }
        release_memory();
        Some(options)
    }

    /// Under which a verdict is kept, where the model is wanted in a precision that needs one.
    fn key(&self, unit: &Arc<dyn ComputeUnit>) -> Option<Key> {
        let precision = self.wanted.precision;
        let is_compared = precision != Precision::Exact && unit.describe().precisions.contains(&precision);
        let budget = Budget::of(precision);
        is_compared.then(|| Key::new(self.fingerprint, unit.as_ref(), &self.wanted, &budget, &self.samples))
    }

    fn place(&self, unit: &Arc<dyn ComputeUnit>) -> Option<Place> {
        let (model, store, unit) = (self.name.clone(), self.store.clone()?, unit.clone());
        Some(Place { model, store, fingerprint: self.fingerprint, unit })
    }

    fn examination(
        &self,
        served: &Weak<Served>,
        unit: &Arc<dyn ComputeUnit>,
        key: Key,
        exact: Option<Arc<Model>>,
    ) -> Examination {
        Examination {
            name: self.name.clone(),
            served: served.clone(),
            exact,
            unit: unit.clone(),
            options: self.wanted.clone(),
            budget: Budget::of(self.wanted.precision),
            samples: self.samples.clone(),
            key,
            files: self.files.clone(),
        }
    }
}
