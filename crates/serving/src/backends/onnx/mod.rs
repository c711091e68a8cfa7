//! ONNX models on the project's own engine, under the names that configurations give to ONNX Runtime.

mod examiner;
mod packed;
mod sampler;
mod samples;
mod served;
mod verdicts;
mod worker;

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
    sync::Arc,
};

use halimede_compute::{
    Budget, CompileOptions, ComputeUnit, Model as Compiled, ModelOptions, Precision, RunError, Verdict,
    fingerprint::of_graph, packed::Store, release_memory,
};
use halimede_graph::{
    Fact, Graph, Op,
    onnx::import::{self, Input, ValueType},
    passes::{PassOptions, optimize},
};
use halimede_tensor::{Buffer, DType, Tensor, Value};
use parking_lot::Mutex;

use crate::{
    backend::{Backend, Batch, Gathered, Instance, LoadedModel, Model, ModelContext, OperatorWork},
    config::{self, Batching, DataType, IoFacts, IoKind, ModelConfig, ModelFacts, OnnxParameters},
    error::Error,
    wire,
};
use examiner::{Examination, report};
use packed::Place;
use served::{Seat, Served};
use verdicts::{Key, Verdicts};
use worker::Worker;

/// The file of a version, where the configuration names none.
const MODEL_FILE: &str = "model.onnx";

/// Names that a message lists.
const NAMES_MAX: usize = 8;

/// Makes a unit whose operations run on so many threads; `None` leaves the number to the unit.
type MakeUnit = dyn Fn(Option<usize>) -> Result<Arc<dyn ComputeUnit>, String> + Send + Sync;

/// The backend `onnxruntime`.
pub struct Onnx {
    /// Of models whose configuration says nothing of it.
    precision: Precision,
    make_unit: Box<MakeUnit>,
    /// The units made so far by number of threads: models that ask for the same share one.
    units: Mutex<BTreeMap<Option<usize>, Arc<dyn ComputeUnit>>>,
    verdicts: Verdicts,
    packed: Option<Arc<Store>>,
    worker: Worker,
}

/// What is kept for the next start.
#[derive(Debug, Default)]
pub struct Kept {
    /// The folder of what was found out about models in fewer bits.
    pub verdicts: Option<PathBuf>,
    /// Packed weights.
    pub packed: Option<Store>,
}

impl Onnx {
    /// Runs models on units that `make_unit` makes, in `precision` where their configuration names none.
    pub fn new(
        precision: Precision,
        kept: Kept,
        make_unit: impl Fn(Option<usize>) -> Result<Arc<dyn ComputeUnit>, String> + Send + Sync + 'static,
    ) -> Self {
        let (verdicts, packed) = (Verdicts(kept.verdicts), kept.packed.map(Arc::new));
        let (make_unit, units) = (Box::new(make_unit), Mutex::default());
        Self { precision, make_unit, units, verdicts, packed, worker: Worker::default() }
    }

    fn unit(&self, threads: Option<usize>) -> Result<Arc<dyn ComputeUnit>, Error> {
        let mut units = self.units.lock();
        if let Some(unit) = units.get(&threads) {
            return Ok(unit.clone());
        }
        let unit = (self.make_unit)(threads).map_err(Error::internal)?;
        units.insert(threads, unit.clone());
        Ok(unit)
    }
}

impl Backend for Onnx {
    fn name(&self) -> &str {
        "onnxruntime"
    }

    fn load(&self, context: &ModelContext) -> Result<LoadedModel, Error> {
        let name = &context.config.name;
        let file = Some(context.config.default_model_filename.as_str()).filter(|file| !file.is_empty());
        let path = context.version_directory().join(file.unwrap_or(MODEL_FILE));
        if !path.exists() {
            return Err(Error::unavailable(format!("unable to find '{}' for model instance '{name}'", path.display())));
        }
        let parameters = OnnxParameters::read(&context.config)?;
        let unit = self.unit(parameters.intra_op_thread_count)?;
        let model = read(&path, &context.config)?;
        let completion = config::finish(context.config.clone(), &facts(&model), &context.options)?;
        let inputs = model.inputs.iter().map(EngineInput::new).collect();
        let outputs = model.outputs.iter().map(|output| output.name.clone()).collect();
        let wanted = CompileOptions {
            precision: parameters.precision.unwrap_or(self.precision),
            exact_nodes: parameters.exact_nodes.clone(),
            ..CompileOptions::default()
        };
        let samples = match &parameters.calibration {
            Some(folder) => samples::read(&context.directory, folder, &model.inputs)?,
            None => Vec::new(),
        };
        let served = self
            .compile(name, unit, model, wanted, samples)
            .map_err(|error| Error::internal(format!("model '{name}' ({}): {error}", path.display())))?;
        let scalars =
            completion.config.output.iter().map(|output| (output.name.clone(), output.dims.clone())).collect();
        let parts = Parts { model: name.clone(), inputs, outputs, scalars };
        let model = Arc::new(OnnxModel { served, parts: Arc::new(parts) });
        Ok(LoadedModel { completion, model })
    }
}

impl Onnx {
    /// Compiles a model as it is wanted, where it is known to be right so; exactly, and to be examined, where
    /// nobody knows yet.
    fn compile(
        &self,
        name: &str,
        unit: Arc<dyn ComputeUnit>,
        model: import::Model,
        wanted: CompileOptions,
        samples: Vec<Vec<Value>>,
    ) -> Result<Arc<Served>, String> {
        let import::Model { mut graph, files, .. } = model;
        optimize(&mut graph, &PassOptions::default());
        check_names(&graph, &wanted.exact_nodes)?;
        let mut compile = CompileOptions::default();
        let budget = Budget::of(wanted.precision);
        let is_offered = unit.describe().precisions.contains(&wanted.precision);
        if wanted.precision == Precision::Fast && !is_offered {
            tracing::warn!("model '{name}' computes in exact precision: nothing here multiplies 8-bit integers fast");
        }
        let is_wanted = wanted.precision != Precision::Exact && is_offered;
        let fingerprint = if is_wanted || self.packed.is_some() { of_graph(&graph) } else { 0 };
        let key = is_wanted.then(|| Key::new(fingerprint, unit.as_ref(), &wanted, &budget, &samples));
        let known = key.as_ref().and_then(|key| self.verdicts.find(key));
        if let Some(verdict) = &known {
            report(name, wanted.precision, verdict);
            if let Verdict::Within { options, .. } = verdict {
                compile = options.clone();
            }
        }
        let place =
            self.packed.clone().map(|store| Place { model: name.to_owned(), store, fingerprint, unit: unit.clone() });
        let options = ModelOptions { passes: None, compile };
        let (compiled, is_packed) = match &place {
            Some(place) => place.compile(graph, &options),
            None => Compiled::compile(graph, unit.as_ref(), &options).map(|compiled| (compiled, false)),
        }
        .map_err(|error| error.to_string())?;
        files.release();
        let served = Arc::new(Served::new(compiled));
        let examination = match (key, known) {
            (Some(key), None) => {
                let (name, served, files) = (name.to_owned(), Arc::downgrade(&served), files.clone());
                Some(Examination { name, served, unit, options: wanted, budget, samples, key, files })
            }
            _ => None,
        };
        let place = place.filter(|_| !is_packed || examination.is_some());
        if examination.is_some() || place.is_some() {
            let (served, verdicts) = (Arc::downgrade(&served), self.verdicts.clone());
            self.worker.add(move || {
                let options = match examination {
                    Some(examination) => examination.run(&verdicts),
                    None => Some(options.compile),
                };
                if let (Some(place), Some(options)) = (place, options) {
                    place.settle(&served, &files, &options);
                }
                // Forms that were tried and given up took much more than the one that stays.
                release_memory();
            });
        }
        Ok(served)
    }
}

/// Names that protect nothing would be worse than none.
fn check_names(graph: &Graph, exact_nodes: &BTreeSet<String>) -> Result<(), String> {
    let products =
        || graph.nodes.iter().filter(|node| matches!(node.op, Op::Contract(_) | Op::Conv(_) | Op::Attention(_)));
    match exact_nodes.iter().find(|name| !products().any(|node| node.name == **name)) {
        None => Ok(()),
        Some(unknown) => {
            let known: Vec<&str> = products().take(NAMES_MAX).map(|node| node.name.as_str()).collect();
            Err(format!(
                "parameter 'exact_nodes': no product has the name '{unknown}'; `halimede explain` lists them, such as {}",
                known.join(", ")
            ))
        }
    }
}

/// Reads the file. Initializers that the configuration declares as optional inputs stay inputs.
fn read(path: &Path, config: &ModelConfig) -> Result<import::Model, Error> {
    let optional = config.input.iter().filter(|input| input.optional);
    let overridable: BTreeSet<String> = optional.map(|input| input.name.clone()).collect();
    import::load_with(path, &import::Options { overridable })
        .map_err(|error| Error::internal(format!("model '{}': {error}", config.name)))
}

/// What the configuration can be completed and checked with.
fn facts(model: &import::Model) -> ModelFacts {
    let input = |input: &Input| io_facts(&input.name, &input.fact, &Fact::default(), &input.value_type);
    let outputs = model.outputs.iter().zip(&model.graph.outputs);
    ModelFacts {
        inputs: model.inputs.iter().filter(|input| input.default.is_none()).map(input).collect(),
        outputs: outputs
            .map(|(output, value)| io_facts(&output.name, &output.fact, model.graph.fact(*value), &output.value_type))
            .collect(),
        initializers: model.overridable.iter().map(input).collect(),
        batching: Batching::Unknown,
    }
}

/// An input or output as it is declared, and as it was worked out where it is not.
fn io_facts(name: &str, declared: &Fact, inferred: &Fact, value_type: &ValueType) -> IoFacts {
    let dtype = declared.dtype.or(inferred.dtype);
    let shape = declared.shape.as_ref().or(inferred.shape.as_ref());
    IoFacts {
        name: name.to_owned(),
        data_type: dtype.map_or(DataType::TypeInvalid, DataType::from_dtype),
        shape: shape.into_iter().flatten().map(|dim| dim.known().unwrap_or(-1)).collect(),
        kind: match value_type {
            ValueType::Tensor => IoKind::Tensor,
            ValueType::Sequence(_) => IoKind::Sequence,
            ValueType::Optional(_) => IoKind::Optional,
            ValueType::Map => IoKind::Map,
        },
    }
}

struct OnnxModel {
    served: Arc<Served>,
    parts: Arc<Parts>,
}

/// The names around the engine, which itself counts inputs and outputs.
struct Parts {
    model: String,
    /// In the engine's order.
    inputs: Vec<EngineInput>,
    /// In the engine's order.
    outputs: Vec<String>,
    /// The configured shape of each output: what clients see of one that has no dimensions.
    scalars: Vec<(String, Vec<i64>)>,
}

struct EngineInput {
    name: String,
    dtype: Option<DType>,
    /// Whether it has no dimensions, which a configuration cannot say.
    is_scalar: bool,
    /// What it is where a request does not give it.
    default: Option<Tensor>,
}

impl EngineInput {
    fn new(input: &Input) -> Self {
        Self {
            name: input.name.clone(),
            dtype: input.fact.dtype,
            is_scalar: input.fact.rank() == Some(0),
            default: input.default.clone(),
        }
    }

    /// The value for the engine.
    fn value(&self, gathered: Option<Gathered>, model: &str) -> Result<Value, Error> {
        let Some(gathered) = gathered else {
            let missing = || Error::internal(format!("model '{model}' got no value for its input '{}'", self.name));
            return self.default.clone().map(Value::Tensor).ok_or_else(missing);
        };
        let Gathered { dtype, shape, data } = gathered;
        let mut shape: Vec<usize> = shape.iter().map(|dim| usize::try_from(*dim).unwrap_or(0)).collect();
        if self.is_scalar && shape.iter().all(|dim| *dim == 1) {
            shape.clear();
        }
        let tensor = match self.dtype.unwrap_or(dtype) {
            DType::String => {
                let strings = wire::strings(&data).map(|string| string.map(<[u8]>::to_vec));
                let strings = strings.collect::<Result<_, _>>().map_err(|_| {
                    Error::invalid(format!("incomplete string data for inference input '{}'", self.name))
                })?;
                Tensor::from_strings(&shape, strings)?
            }
            // The engine counts on 0 and 1.
            DType::Bool if data.iter().any(|byte| *byte > 1) => {
                let bools: Vec<bool> = data.iter().map(|byte| *byte != 0).collect();
                Tensor::from_bools(&shape, &bools)?
            }
            dtype => Tensor::from_buffer(dtype, &shape, data)?,
        };
        Ok(Value::Tensor(tensor))
    }
}

impl Model for OnnxModel {
    fn instance(&self, _: usize) -> Result<Box<dyn Instance>, Error> {
        Ok(Box::new(OnnxInstance { seat: self.served.seat(), parts: self.parts.clone() }))
    }

    fn operator_work(&self) -> Vec<OperatorWork> {
        self.served.sampler().work()
    }
}

struct OnnxInstance {
    seat: Seat,
    parts: Arc<Parts>,
}

impl Instance for OnnxInstance {
    fn execute(&mut self, batch: &mut Batch) {
        let inputs = self.parts.gather(|name| batch.gather(name));
        batch.inputs_ready();
        let outputs = inputs.and_then(|inputs| self.run(&inputs, &|| batch.is_cancelled()));
        match outputs {
            Ok(outputs) => {
                batch.outputs_computed();
                for (name, output) in outputs {
                    if let Err(error) = batch.scatter(&name, output.dtype, &output.shape, output.data) {
                        return batch.fail_all(&error);
                    }
                }
            }
            // One request must not fail for what is in another.
            Err(_) if batch.len() > 1 && !batch.is_cancelled() => {
                (0..batch.len()).for_each(|index| self.execute_alone(batch, index))
            }
            Err(error) => batch.fail_all(&error),
        }
    }
}

impl OnnxInstance {
    /// Runs one request of a batch that failed as a whole.
    fn execute_alone(&mut self, batch: &mut Batch, index: usize) {
        let is_cancelled = || batch.request(index).responder.is_cancelled();
        let inputs = self.parts.gather(|name| batch.gather_one(index, name));
        match inputs.and_then(|inputs| self.run(&inputs, &is_cancelled)) {
            Ok(outputs) => {
                for (name, output) in
                    outputs.into_iter().filter(|(name, _)| batch.wants(index, name)).collect::<Vec<_>>()
                {
                    batch.push_output(index, output.named(name));
                }
            }
            Err(error) => batch.fail(index, error),
        }
    }

    /// Runs the model, as long as somebody waits for it.
    fn run(&mut self, inputs: &[Value], is_cancelled: &dyn Fn() -> bool) -> Result<Vec<(String, Gathered)>, Error> {
        let parts = &self.parts;
        let failed = |error: RunError| match error {
            RunError::Cancelled => Error::cancelled("the request was cancelled"),
            error => Error::internal(format!("model '{}': {error}", parts.model)),
        };
        let (session, sampler) = self.seat.session();
        let is_measured = sampler.takes(session);
        session.measure(is_measured);
        session.run_watched(inputs, is_cancelled).map_err(failed)?;
        if is_measured {
            sampler.add(session);
        }
        let values = session.take_outputs().map_err(failed)?;
        let names = parts.outputs.iter();
        values.into_iter().zip(names).map(|(value, name)| Ok((name.clone(), parts.output(name, &value)?))).collect()
    }
}

impl Parts {
    /// What `gather` finds for each input, as the engine takes it.
    fn gather(&self, gather: impl Fn(&str) -> Result<Option<Gathered>, Error>) -> Result<Vec<Value>, Error> {
        self.inputs.iter().map(|input| input.value(gather(&input.name)?, &self.model)).collect()
    }

    /// An output in wire form.
    fn output(&self, name: &str, value: &Value) -> Result<Gathered, Error> {
        let tensor = value
            .tensor()
            .map_err(|error| Error::internal(format!("model '{}', output '{name}': {error}", self.model)))?;
        let mut shape: Vec<i64> = tensor.shape().iter().map(|dim| *dim as i64).collect();
        if shape.is_empty() {
            let configured = self.scalars.iter().find(|(output, _)| output == name);
            shape = configured.map_or(Vec::new(), |(_, dims)| vec![1; dims.len()]);
        }
        let data = match tensor.strings() {
            Err(_) => tensor.buffer()?.clone(),
            Ok(strings) => {
                let mut bytes =
                    Vec::with_capacity(strings.iter().map(|string| wire::LENGTH_BYTES + string.len()).sum());
                for string in strings {
                    wire::push_string(&mut bytes, string)
                        .ok_or_else(|| Error::internal(format!("a string of output '{name}' is longer than 4 GiB")))?;
                }
                Buffer::foreign(bytes)
            }
        };
        Ok(Gathered { dtype: tensor.dtype(), shape, data })
    }
}
