//! ONNX models on the project's own engine, under the names that configurations give to ONNX Runtime.

mod activity;
mod examiner;
mod memory;
mod packed;
mod recipe;
mod sampler;
mod samples;
mod served;
mod shapes;
mod tuned;
mod tuner;
mod units;
mod verdicts;
mod worker;

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
    sync::Arc,
};

use halimede_compute::{
    CompileOptions, ComputeUnit, Precision, RunError, fingerprint::of_graph, packed::Store, tuning::Choices,
};
use halimede_graph::{
    Fact, Graph, Op,
    onnx::import::{self, Input, ValueType},
    passes::{PassOptions, optimize},
};
use halimede_tensor::{Buffer, DType, Held, Tensor, Value};

use crate::{
    admission::MemoryNeed,
    backend::{
        Backend, Batch, Gathered, Instance, LoadedModel, MemoryPart, Model, ModelContext, ModelMemory, OperatorWork,
        TuningWork,
    },
    config::{self, Batching, DataType, IoFacts, IoKind, ModelConfig, ModelFacts, OnnxParameters, Tune},
    error::Error,
    wire,
};
use activity::Activity;
use recipe::{Compiled, Recipe};
use served::{Seat, Served};
use tuned::{Left, Progress, TunedModel};
use tuner::Tuner;
pub use tuner::{Remember, Tuning};
use units::Units;
pub use units::Wish;
use verdicts::Verdicts;
use worker::Worker;

/// The file of a version, where the configuration names none.
const MODEL_FILE: &str = "model.onnx";

/// Names that a message lists.
const NAMES_MAX: usize = 8;

/// The backend `onnxruntime`.
pub struct Onnx {
    /// Of models whose configuration says nothing of it.
    precision: Precision,
    units: Arc<Units>,
    verdicts: Verdicts,
    packed: Option<Arc<Store>>,
    activity: Arc<Activity>,
    worker: Arc<Worker>,
    /// What tuned models share, where models can be tuned.
    tuning: Option<Arc<tuned::Shared>>,
    tuner: Arc<Tuner>,
}

/// What was found out before, and is kept for the next start.
#[derive(Debug, Default)]
pub struct Kept {
    /// The folder of what was found out about models in fewer bits.
    pub verdicts: Option<PathBuf>,
    /// Packed weights.
    pub packed: Option<Store>,
    /// Configurations of kernels that were measured to be fastest.
    pub choices: Arc<Choices>,
}

impl Onnx {
    /// Runs models on units that `make_unit` makes, in `precision` where their configuration names none. Without `tuning`
    /// no model is tuned.
    pub fn new(
        precision: Precision,
        kept: Kept,
        tuning: Option<Tuning>,
        make_unit: impl Fn(Wish, Arc<Choices>) -> Result<Arc<dyn ComputeUnit>, String> + Send + Sync + 'static,
    ) -> Self {
        let (verdicts, packed) = (Verdicts(kept.verdicts), kept.packed.map(Arc::new));
        let units = Arc::new(Units::new(kept.choices, make_unit));
        let activity = Arc::new(Activity::default());
        let worker = Arc::new(Worker::new(activity.clone()));
        let tuning = tuning.map(|tuning| {
            let (units, activity, worker) = (units.clone(), activity.clone(), worker.clone());
            Arc::new(tuned::Shared { tuning, units, activity, worker })
        });
        Self { precision, units, verdicts, packed, activity, worker, tuning, tuner: Arc::default() }
    }
}

impl Backend for Onnx {
    fn name(&self) -> &str {
        "onnxruntime"
    }

    fn load(&self, context: &ModelContext) -> Result<LoadedModel, Error> {
        let _work = self.activity.begin();
        let name = &context.config.name;
        let file = Some(context.config.default_model_filename.as_str()).filter(|file| !file.is_empty());
        let path = context.version_directory().join(file.unwrap_or(MODEL_FILE));
        if !path.exists() {
            return Err(Error::unavailable(format!("unable to find '{}' for model instance '{name}'", path.display())));
        }
        let parameters = OnnxParameters::read(&context.config)?;
        let unit = self.units.get(wish(&parameters))?;
        let model = read(&path, &context.config)?;
        let completion = config::finish(context.config.clone(), &facts(&model), &context.options)?;
        let inputs: Vec<EngineInput> = model.inputs.iter().map(EngineInput::new).collect();
        let outputs = model.outputs.iter().map(|output| output.name.clone()).collect();
        let samples = match &parameters.calibration {
            Some(folder) => samples::read(&context.directory, folder, &model.inputs)?,
            None => Vec::new(),
        };
        let instances = instance_count(&completion.config);
        let precision = parameters.precision.unwrap_or(self.precision);
        let weights = memory::weights(&model.graph, precision);
        let _weights = context.promise(&MemoryNeed { weights, ..MemoryNeed::default() })?;
        let configured = shapes::configured(&completion.config, &inputs);
        let to_tune = self.tuning(&parameters, name);
        let to_tune = to_tune.map(|shared| (shared, configured.clone()));
        let (served, progress) = self
            .compile(name, unit, model, &parameters, samples, to_tune)
            .map_err(|error| Error::internal(format!("model '{name}' ({}): {error}", path.display())))?;
        if context.admission.is_some() {
            let instance = memory::of_a_run(&served.model(), &configured);
            context.promise(&MemoryNeed { weights: 0, instance, instances })?;
        }
        let scalars =
            completion.config.output.iter().map(|output| (output.name.clone(), output.dims.clone())).collect();
        let parts = Parts { model: name.clone(), inputs, outputs, scalars };
        let model = Arc::new(OnnxModel { served, parts: Arc::new(parts), activity: self.activity.clone(), progress });
        Ok(LoadedModel { completion, model })
    }
}

/// What a model's parameters ask of its unit.
fn wish(parameters: &OnnxParameters) -> Wish {
    Wish { threads: parameters.intra_op_thread_count, matrix: parameters.matrix.unwrap_or(true) }
}

/// What the tuning of a model needs to know: what it shares with others, and the shapes of its configuration.
type ToTune = (Arc<tuned::Shared>, Vec<shapes::Descs>);

impl Onnx {
    /// What a model that is to be tuned shares with others.
    fn tuning(&self, parameters: &OnnxParameters, name: &str) -> Option<Arc<tuned::Shared>> {
        let shared = self.tuning.clone();
        if shared.is_none() && parameters.tune == Some(Tune::Background) {
            tracing::warn!("model '{name}' is not tuned: there is no place to remember what would be found");
        }
        let is_default = shared.as_ref().is_some_and(|shared| shared.tuning.by_default);
        let is_wanted = parameters.tune.map_or(is_default, |tune| tune == Tune::Background);
        shared.filter(|_| is_wanted)
    }

    /// Compiles a model as it is wanted, where it is known to be right so; exactly, and to be examined, where
    /// nobody knows yet. What is left to do is done in the background.
    fn compile(
        &self,
        name: &str,
        unit: Arc<dyn ComputeUnit>,
        model: import::Model,
        parameters: &OnnxParameters,
        samples: Vec<Vec<Value>>,
        to_tune: Option<ToTune>,
    ) -> Result<(Arc<Served>, Option<Arc<Progress>>), String> {
        let wanted = CompileOptions {
            precision: parameters.precision.unwrap_or(self.precision),
            exact_nodes: parameters.exact_nodes.clone(),
            ..CompileOptions::default()
        };
        let import::Model { mut graph, files, .. } = model;
        optimize(&mut graph, &PassOptions::default());
        check_names(&graph, &wanted.exact_nodes)?;
        let is_kept = wanted.precision != Precision::Exact || self.packed.is_some();
        let recipe = Arc::new(Recipe {
            name: name.to_owned(),
            wanted,
            samples,
            fingerprint: if is_kept { of_graph(&graph) } else { 0 },
            files,
            verdicts: self.verdicts.clone(),
            store: self.packed.clone(),
        });
        let Compiled { model, rest } = recipe.compile(graph, &unit).map_err(|error| error.to_string())?;
        let served = Arc::new(Served::new(model));
        let progress = to_tune.is_some().then(|| Arc::new(Progress::waiting()));
        if to_tune.is_some() || rest.is_something(&recipe) {
            let (served, progress, tuner) = (Arc::downgrade(&served), progress.clone(), self.tuner.clone());
            let wish = wish(parameters);
            self.worker.add(move || {
                let Some(options) = recipe.settle(&served, &unit, rest) else { return };
                if let (Some((shared, shapes)), Some(progress)) = (to_tune, progress) {
                    let (configured, left) = (shapes, Left::all(&shared.tuning));
                    tuner.add(Box::new(TunedModel {
                        shared,
                        recipe,
                        served,
                        wish,
                        unit,
                        options,
                        configured,
                        progress,
                        left,
                    }));
                }
            });
        }
        Ok((served, progress))
    }
}

/// How many instances a configuration asks for.
fn instance_count(config: &ModelConfig) -> u64 {
    let counts = config.instance_group.iter().map(|group| u64::try_from(group.count).unwrap_or(0));
    counts.fold(0, u64::saturating_add)
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
    let shape = |fact: &Fact| -> Option<Vec<i64>> {
        Some(fact.shape.as_ref()?.iter().map(|dim| dim.known().unwrap_or(-1)).collect())
    };
    let (declared, inferred) = (shape(declared), shape(inferred).unwrap_or_default());
    let shape = declared.unwrap_or_else(|| inferred.clone());
    IoFacts {
        name: name.to_owned(),
        data_type: dtype.map_or(DataType::TypeInvalid, DataType::from_dtype),
        inferred: if inferred.len() == shape.len() { inferred } else { Vec::new() },
        shape,
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
    activity: Arc<Activity>,
    /// Of its tuning, where it is tuned.
    progress: Option<Arc<Progress>>,
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
    fn instance(&self, index: usize) -> Result<Box<dyn Instance>, Error> {
        let (seat, parts, activity) = (self.served.seat(index), self.parts.clone(), self.activity.clone());
        Ok(Box::new(OnnxInstance { seat, parts, activity }))
    }

    fn operator_work(&self) -> Vec<OperatorWork> {
        self.served.sampler().work()
    }

    fn memory(&self) -> Option<ModelMemory> {
        let footprint = self.served.model().footprint();
        let plans = Held { private: footprint.plans, mapped: 0 };
        let parts = [
            ("packed", footprint.packed),
            ("constants", footprint.constants),
            ("sources", footprint.sources),
            ("plans", plans),
        ];
        let parts = parts.map(|(name, Held { private, mapped })| MemoryPart { name, private, mapped }).into();
        Some(ModelMemory { weights: footprint.weights, parts, instances: self.served.instance_bytes() })
    }

    fn tuning_work(&self) -> Option<TuningWork> {
        self.progress.as_ref().map(|progress| progress.now())
    }
}

struct OnnxInstance {
    seat: Seat,
    parts: Arc<Parts>,
    activity: Arc<Activity>,
}

impl Instance for OnnxInstance {
    fn execute(&mut self, batch: &mut Batch) {
        let activity = self.activity.clone();
        let _work = activity.begin();
        let inputs = self.parts.gather(|name| batch.gather(name));
        batch.inputs_ready();
        let (is_cancelled, wants) = (|| batch.is_cancelled(), |name: &str| batch.any_wants(name));
        let outputs = inputs.and_then(|inputs| self.run(&inputs, &is_cancelled, &wants));
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
        let wants = |name: &str| batch.wants(index, name);
        let alone = index..index + 1;
        let inputs = self.parts.gather(|name| batch.gather_of(alone.clone(), name));
        let outputs = inputs.and_then(|inputs| self.run(&inputs, &is_cancelled, &wants));
        let scatter = |outputs: Vec<(String, Gathered)>| {
            outputs.into_iter().try_for_each(|(name, output)| {
                batch.scatter_to(alone.clone(), &name, output.dtype, &output.shape, output.data)
            })
        };
        if let Err(error) = outputs.and_then(scatter) {
            batch.fail(index, error);
        }
    }

    /// Runs the model, as long as somebody waits for it, and gives the outputs that somebody wants. What else a graph gives
    /// need not even have a row for each request.
    fn run(
        &mut self,
        inputs: &[Value],
        is_cancelled: &dyn Fn() -> bool,
        wants: &dyn Fn(&str) -> bool,
    ) -> Result<Vec<(String, Gathered)>, Error> {
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
        self.seat.count_memory();
        let named = values.into_iter().zip(&parts.outputs).filter(|(_, name)| wants(name));
        named.map(|(value, name)| Ok((name.clone(), parts.output(name, &value)?))).collect()
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
