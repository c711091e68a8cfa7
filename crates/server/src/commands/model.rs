//! A model given to a verb: which file, on which unit, with which inputs.

use std::{
    error::Error,
    path::{Path, PathBuf},
};

use halimede_compute::{CompileOptions, Model as Compiled, ModelOptions, Precision};
use halimede_graph::{
    onnx::import::{self, Model},
    passes::{PassOptions, PassReport, optimize},
};
use halimede_tensor::Value;

use super::inputs;
use crate::units;

/// Which model, and how it is compiled.
#[derive(Debug, clap::Args)]
pub struct ModelArgs {
    /// An ONNX file, a folder that holds one, or the folder of a model in a repository.
    #[arg(value_name = "MODEL")]
    pub path: PathBuf,
    /// The compute unit.
    #[arg(long, default_value = "cpu")]
    pub unit: String,
    /// Threads that run one operation together; as many as there are cores when left out.
    #[arg(long, value_name = "N")]
    pub threads: Option<usize>,
    /// How exactly to compute: exact.
    #[arg(long, default_value = "exact")]
    pub precision: String,
    /// `off` runs the model as it was imported.
    #[arg(long, default_value = "on")]
    pub passes: String,
    /// An input: name=FILE.npy, name=FILE.json, name=[1, 2] or name=dtype:1x128[:zeros|:ones|:random].
    #[arg(long, value_name = "NAME=VALUE")]
    pub input: Vec<String>,
}

impl ModelArgs {
    /// Reads and optimizes the model.
    pub fn read(&self) -> Result<(Model, Vec<PassReport>), Box<dyn Error>> {
        let mut model = import::load(&self.file())?;
        let reports = match self.passes.as_str() {
            "on" => optimize(&mut model.graph, &PassOptions::default()),
            "off" => Vec::new(),
            other => return Err(format!("--passes {other}: it is on or off").into()),
        };
        Ok((model, reports))
    }

    /// The file of the newest version, where the path is a model's folder in a repository.
    fn file(&self) -> PathBuf {
        let version = |path: &Path| path.file_name()?.to_str()?.parse::<u64>().ok();
        let versions = std::fs::read_dir(&self.path).into_iter().flatten().flatten().map(|entry| entry.path());
        let newest = versions.filter(|path| path.join("model.onnx").exists()).max_by_key(|path| version(path));
        newest.map_or_else(|| self.path.clone(), |newest| newest.join("model.onnx"))
    }

    /// Compiles a model that was read.
    pub fn compile(&self, model: Model) -> Result<Compiled, Box<dyn Error>> {
        let precision = match self.precision.as_str() {
            "exact" => Precision::Exact,
            other => return Err(format!("--precision {other}: this version computes in exact precision only").into()),
        };
        let unit = units::find(&self.unit, self.threads)?;
        // The passes ran when the model was read, or were left out.
        let options = ModelOptions { passes: None, compile: CompileOptions { precision } };
        let compiled = Compiled::compile(model.graph, &*unit, &options)?;
        model.files.release();
        Ok(compiled)
    }

    /// Reads and compiles the model and finds its inputs.
    pub fn load(&self, npz: Option<&Path>) -> Result<(Compiled, Vec<Value>), Box<dyn Error>> {
        let (model, _) = self.read()?;
        let inputs = inputs::collect(&model, &self.input, npz)?;
        Ok((self.compile(model)?, inputs))
    }
}

/// Datatype and shape of a value, for listings.
pub(super) fn describe(value: &Value) -> String {
    match value {
        Value::Tensor(tensor) => format!("{}{:?}", tensor.dtype(), tensor.shape()),
        _ => "no tensor".to_owned(),
    }
}
