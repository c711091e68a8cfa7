//! A model given to a verb: which file, on which unit, with which inputs.

use std::{
    error::Error as AnyError,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use halimede_compute::{BandsOf, ComputeUnit, Model as Compiled, ModelOptions, Precision, calibrated, tuning::Choices};
use halimede_compute_cpu::BlockedLayouts;
use halimede_graph::{
    onnx::import::{self, Model},
    passes::{PassOptions, PassReport, optimize},
};
use halimede_platform::threads;
use halimede_serving::{Error, Served};
use halimede_tensor::Value;

use super::doctor::remedies;
use crate::{
    source::Source,
    units::{self, Choice},
};

/// Which model, and its inputs.
#[derive(Debug, clap::Args)]
pub struct ModelArgs {
    /// An ONNX file, a folder that holds one, or the folder of a model in a repository.
    #[arg(value_name = "MODEL")]
    pub path: PathBuf,
    /// `off` runs the model as it was imported.
    #[arg(long, default_value = "on")]
    pub passes: String,
    /// An input: name=FILE.npy, name=FILE.json, name=[1, 2] or name=dtype:1x128[:zeros|:ones|:random].
    #[arg(long, value_name = "NAME=VALUE")]
    pub input: Vec<String>,
}

/// Where and how exactly to compute.
#[derive(Debug, clap::Args)]
pub struct UnitArgs {
    /// The compute unit.
    #[arg(long, default_value = "cpu")]
    pub unit: String,
    /// Threads that run one operation together; as many as there are cores when left out.
    #[arg(long, value_name = "N")]
    pub threads: Option<usize>,
    /// How exactly to compute: exact (f32), balanced (products of bf16, everything else in f32), or fast (products
    /// of 8-bit integers where weights are stored, everything else as in balanced).
    #[arg(long, default_value_t)]
    pub precision: Precision,
    /// Multiply without a matrix unit (AMX, SME, BF16 instructions) and without Accelerate: balanced then is exact, and
    /// fast multiplies integers by vector instructions.
    #[arg(long)]
    pub disable_matrix: bool,
    /// How values between products lie in memory: where-pays (in blocks, as tiles are read, on Intel AMX), row-major, or
    /// blocked (wherever it can be). The other two are for measurements.
    #[arg(long, value_name = "CHOICE", default_value = "where-pays")]
    pub layouts: BlockedLayouts,
    /// Which images go through several steps in bands of rows: where-pays (those that the caches near a core would not hold),
    /// none, or all that can in bands of so many rows. The other two are for measurements.
    #[arg(long, value_name = "CHOICE", default_value = "where-pays")]
    pub bands: BandsOf,
    /// Where it is kept which configurations of its kernels are the fastest, instead of `tuning.jsonl` in the
    /// user's cache; `off` lets every kernel do what it does by itself.
    #[arg(long, value_name = "FILE|off", visible_alias = "database")]
    pub tuning_database: Option<String>,
    /// Seconds after which a run is given up.
    #[arg(long, value_name = "SECONDS", default_value = "300", value_parser = super::seconds)]
    pub timeout: Duration,
}

impl UnitArgs {
    /// The unit.
    pub fn find(&self) -> Result<Box<dyn ComputeUnit>, String> {
        self.find_with(self.database().read_or_warn(self.matrix(), &|warning| eprintln!("warning: {warning}")))
    }

    /// The unit with those configurations of its kernels.
    pub fn find_with(&self, choices: Arc<Choices>) -> Result<Box<dyn ComputeUnit>, String> {
        let choice = Choice {
            threads: self.threads,
            matrix: units::matrix_units(self.matrix()),
            blocked: self.layouts,
            bands: self.bands,
            choices,
        };
        units::find(&self.unit, choice)
    }

    /// Where the fastest configurations are kept.
    pub fn database(&self) -> Source {
        self.tuning_database.as_deref().map(Source::from).unwrap_or_default()
    }

    /// Whether the matrix unit may be used.
    pub fn matrix(&self) -> bool {
        !self.disable_matrix
    }

    /// The threads that run one operation together.
    pub fn threads(&self) -> usize {
        self.threads.unwrap_or_else(threads::parallelism)
    }
}

impl ModelArgs {
    /// Reads and optimizes the model.
    pub fn read(&self) -> Result<(Model, Vec<PassReport>), Box<dyn AnyError>> {
        let mut model = import::load(&file(&self.path)?)?;
        let reports = match self.passes.as_str() {
            "on" => optimize(&mut model.graph, &PassOptions::default()),
            "off" => Vec::new(),
            other => return Err(format!("--passes {other}: it is on or off").into()),
        };
        Ok((model, reports))
    }

    /// Compiles a model that was read, in fast precision by what it multiplies for these inputs.
    pub fn compile(
        &self,
        model: Model,
        unit: &dyn ComputeUnit,
        on: &UnitArgs,
        inputs: &[Vec<Value>],
    ) -> Result<Compiled, Box<dyn AnyError>> {
        let compile = calibrated(&model.graph, unit, on.precision.into(), inputs)?;
        if on.precision == Precision::Fast && compile.integers.is_empty() {
            eprintln!("no product to round to 8 bits (one with stored weights that has floats): as in balanced");
        }
        // The passes ran when the model was read, or were left out.
        let options = ModelOptions { passes: None, compile };
        let compiled = Compiled::compile(model.graph, unit, &options)?;
        model.files.release();
        Ok(compiled)
    }
}

/// The file that `halimede serve` would load, where the path is a model's folder in a repository; else the path.
pub(super) fn file(path: &Path) -> Result<PathBuf, Error> {
    let what = match halimede_serving::served(path)? {
        None => return Ok(path.to_owned()),
        Some(Served::Onnx(file)) => return Ok(file),
        Some(Served::Ensemble) => "it is an ensemble: `halimede serve` runs it with its repository".to_owned(),
        Some(Served::Backend(backend)) => match remedies::of_foreign(&backend) {
            None => format!("it is of the backend '{backend}': `halimede serve` runs it with its repository"),
            Some(remedy) => format!("it is of the backend '{backend}', which is not here: {remedy}"),
        },
    };
    Err(Error::unsupported(format!("'{}' is no ONNX file, {what}", path.display())))
}

/// Datatype and shape of a value, for listings.
pub(super) fn describe(value: &Value) -> String {
    match value {
        Value::Tensor(tensor) => format!("{}{:?}", tensor.dtype(), tensor.shape()),
        _ => "no tensor".to_owned(),
    }
}
