use crate::caught::caught;
use crate::runner::producer;
use crate::{DataSet, Failed, Failure, Loaded, Report, Runner, TestCase, Tolerance, compare};
use halimede_graph::onnx::import::{self, Model, Options, Reason, ValueType, read_value};
use halimede_graph::passes::{PassOptions, optimize};
use halimede_tensor::Value;
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

/// How cases are run.
#[derive(Debug, Clone)]
pub struct CheckOptions {
    /// How far numbers may lie apart.
    pub tolerance: Tolerance,
    /// Cases that run at the same time.
    pub threads: usize,
    /// The rewrites that models go through before they run; `None` runs them as they were read.
    pub passes: Option<PassOptions>,
}

impl Default for CheckOptions {
    fn default() -> CheckOptions {
        CheckOptions { tolerance: Tolerance::default(), threads: 1, passes: Some(PassOptions::default()) }
    }
}

/// Stack of a worker in bytes: nested bodies recurse.
const STACK: usize = 16 << 20;

enum Outcome {
    Passed { on_kernels: bool },
    Failed(Failure),
    Skipped,
}

/// Runs cases and reports in their order.
pub fn check(cases: &[TestCase], runner: &dyn Runner, options: &CheckOptions) -> Report {
    let next = AtomicUsize::new(0);
    let outcomes: Mutex<Vec<Option<Outcome>>> = Mutex::new(cases.iter().map(|_| None).collect());
    let work = || {
        while let Some((index, case)) = {
            let index = next.fetch_add(1, Ordering::Relaxed);
            cases.get(index).map(|case| (index, case))
        } {
            let outcome = match caught(|| run_case(case, runner, options)) {
                Ok(outcome) => outcome,
                Err(panic) => Outcome::Failed(Failure::new(&case.name, None, panic)),
            };
            outcomes.lock().unwrap_or_else(|poisoned| poisoned.into_inner())[index] = Some(outcome);
        }
    };
    thread::scope(|scope| {
        for _ in 0..options.threads.clamp(1, cases.len().max(1)) {
            if thread::Builder::new().stack_size(STACK).spawn_scoped(scope, work).is_err() {
                // Without threads the work is done here.
                work();
            }
        }
    });
    let outcomes = outcomes.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner());
    let mut report = Report::default();
    for (case, outcome) in cases.iter().zip(outcomes) {
        match outcome {
            Some(Outcome::Passed { on_kernels }) => {
                report.passed += 1;
                report.passes.push(case.name.clone());
                if on_kernels {
                    report.on_kernels += 1;
                } else {
                    report.by_reference.push(case.name.clone());
                }
            }
            Some(Outcome::Failed(failure)) => {
                report.failed += 1;
                report.failures.push(failure);
            }
            Some(Outcome::Skipped) | None => report.skipped += 1,
        }
    }
    report
}

fn run_case(case: &TestCase, runner: &dyn Runner, options: &CheckOptions) -> Outcome {
    if case.data.is_empty() {
        return Outcome::Skipped;
    }
    let failed = |failed: Failed| Outcome::Failed(Failure::new(&case.name, failed.operator.as_deref(), failed.reason));
    let mut model = match load(case) {
        Ok(model) => model,
        Err(error) => return failed(error),
    };
    if let Some(passes) = &options.passes {
        optimize(&mut model.graph, passes);
    }
    let mut loaded = match runner.load(&model) {
        Ok(loaded) => loaded,
        Err(error) => return failed(error),
    };
    let mut on_kernels = true;
    for data in &case.data {
        match run_data(&model, &mut *loaded, data, options.tolerance) {
            Ok(kernels) => on_kernels &= kernels,
            Err(error) => return failed(error),
        }
    }
    Outcome::Passed { on_kernels }
}

fn load(case: &TestCase) -> Result<Model, Failed> {
    let load = |options: &Options| {
        import::load_with(&case.model, options).map_err(|error| match error.reason {
            Reason::Node(error) => error.into(),
            other => Failed { operator: None, reason: other.to_string() },
        })
    };
    let model = load(&Options::default())?;
    // Data for more inputs than there are speaks of the initializers that are inputs too.
    if case.data.iter().any(|data| data.inputs.len() > model.inputs.len()) && !model.overridable.is_empty() {
        let overridable: BTreeSet<String> = model.overridable.iter().map(|input| input.name.clone()).collect();
        return load(&Options { overridable });
    }
    Ok(model)
}

fn run_data(model: &Model, loaded: &mut dyn Loaded, data: &DataSet, tolerance: Tolerance) -> Result<bool, Failed> {
    let plain = |reason: String| Failed { operator: None, reason };
    if data.inputs.len() > model.inputs.len() || data.outputs.len() > model.outputs.len() {
        return Err(plain(format!(
            "'{}' holds {} inputs and {} outputs; the model has {} and {}",
            data.path.display(),
            data.inputs.len(),
            data.outputs.len(),
            model.inputs.len(),
            model.outputs.len()
        )));
    }
    let mut inputs = Vec::with_capacity(model.inputs.len());
    for (index, input) in model.inputs.iter().enumerate() {
        inputs.push(match (data.inputs.get(index), &input.default) {
            (Some(path), _) => stored(path, &input.value_type)?,
            (None, Some(default)) => default.clone().into(),
            (None, None) => return Err(plain(format!("'{}' holds no input {index}", data.path.display()))),
        });
    }
    let computed = loaded.run(&inputs)?;
    for (index, path) in data.outputs.iter().enumerate() {
        let output = &model.outputs[index];
        let actual = computed.outputs.get(index).ok_or_else(|| plain(format!("no output '{}'", output.name)))?;
        compare(&stored(path, &output.value_type)?, actual, tolerance).map_err(|mismatch| Failed {
            operator: producer(&model.graph, index),
            reason: format!("output '{}': {mismatch}", output.name),
        })?;
    }
    Ok(computed.on_kernels)
}

fn stored(path: &Path, value_type: &ValueType) -> Result<Value, Failed> {
    let wrong = |error: String| Failed { operator: None, reason: format!("{}: {error}", path.display()) };
    let bytes = std::fs::read(path).map_err(|error| wrong(error.to_string()))?;
    read_value(bytes.into(), value_type).map_err(wrong)
}
