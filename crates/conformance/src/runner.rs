use halimede_compute::{ComputeUnit, ModelOptions, Precision, RunError, Session, calibrated};
use halimede_graph::onnx::import::Model;
use halimede_graph::{Graph, GraphError, reference};
use halimede_tensor::Value;
use std::time::Duration;

/// Something that can run models: the reference interpreter, or a compute unit.
pub trait Runner: Sync {
    /// The name that users say.
    fn name(&self) -> &str;

    /// Prepares a model.
    fn load<'r>(&'r self, model: &Model) -> Result<Box<dyn Loaded + 'r>, Failed>;
}

/// A model that is ready to run.
pub trait Loaded {
    /// Computes the outputs, in the model's order, from the inputs, in the model's order.
    fn run(&mut self, inputs: &[Value]) -> Result<Computed, Failed>;
}

/// What a run gave.
#[derive(Debug)]
pub struct Computed {
    /// The outputs in the model's order.
    pub outputs: Vec<Value>,
    /// Whether every node that computes something ran on a kernel of the unit.
    pub on_kernels: bool,
}

/// Why a model could not be prepared or run.
#[derive(Debug)]
pub struct Failed {
    /// The operator with its opset, where the failure has a node: `Conv (opset 17)`.
    pub operator: Option<String>,
    /// Why.
    pub reason: String,
}

impl From<GraphError> for Failed {
    fn from(error: GraphError) -> Failed {
        Failed { operator: Some(error.operator.clone()), reason: format!("node '{}': {}", error.node, error.source) }
    }
}

impl From<RunError> for Failed {
    fn from(error: RunError) -> Failed {
        match error {
            RunError::Graph(error) => error.into(),
            other => Failed { operator: None, reason: other.to_string() },
        }
    }
}

/// The reference interpreter: every operation by its definition.
pub struct ReferenceRunner;

impl Runner for ReferenceRunner {
    fn name(&self) -> &str {
        "reference"
    }

    fn load<'r>(&'r self, model: &Model) -> Result<Box<dyn Loaded + 'r>, Failed> {
        Ok(Box::new(Interpreted(model.graph.clone())))
    }
}

struct Interpreted(Graph);

impl Loaded for Interpreted {
    fn run(&mut self, inputs: &[Value]) -> Result<Computed, Failed> {
        Ok(Computed { outputs: reference::run(&self.0, inputs)?, on_kernels: false })
    }
}

/// A compute unit running compiled plans.
pub struct UnitRunner<'u> {
    unit: &'u dyn ComputeUnit,
    options: ModelOptions,
    run_time_max: Option<Duration>,
}

impl<'u> UnitRunner<'u> {
    /// Runs on `unit`, compiled with `options`.
    pub fn new(unit: &'u dyn ComputeUnit, options: ModelOptions) -> UnitRunner<'u> {
        UnitRunner { unit, options, run_time_max: None }
    }

    /// Gives up runs that take longer; a loop may have no end.
    pub fn within(self, run_time_max: Duration) -> UnitRunner<'u> {
        UnitRunner { run_time_max: Some(run_time_max), ..self }
    }
}

impl Runner for UnitRunner<'_> {
    fn name(&self) -> &str {
        self.unit.name()
    }

    fn load<'r>(&'r self, model: &Model) -> Result<Box<dyn Loaded + 'r>, Failed> {
        if self.options.compile.precision == Precision::Fast {
            return Ok(Box::new(Calibrated { runner: self, graph: model.graph.clone() }));
        }
        Ok(Box::new(self.compile(&model.graph, &self.options)?))
    }
}

impl UnitRunner<'_> {
    fn compile(&self, graph: &Graph, options: &ModelOptions) -> Result<Compiled, Failed> {
        let compiled = halimede_compute::Model::compile(graph.clone(), self.unit, options).map_err(failed)?;
        Ok(Compiled { session: compiled.session(), run_time_max: self.run_time_max })
    }
}

fn failed(error: impl std::fmt::Display) -> Failed {
    Failed { operator: None, reason: error.to_string() }
}

/// A model in fast precision: calibrated on what it is to compute, and compiled for that. The passes have run.
struct Calibrated<'r> {
    runner: &'r UnitRunner<'r>,
    graph: Graph,
}

impl Loaded for Calibrated<'_> {
    fn run(&mut self, inputs: &[Value]) -> Result<Computed, Failed> {
        let UnitRunner { unit, options, .. } = self.runner;
        let compile = calibrated(&self.graph, *unit, options.compile.clone(), &[inputs.to_vec()]).map_err(failed)?;
        self.runner.compile(&self.graph, &ModelOptions { compile, ..options.clone() })?.run(inputs)
    }
}

struct Compiled {
    session: Session,
    run_time_max: Option<Duration>,
}

impl Loaded for Compiled {
    fn run(&mut self, inputs: &[Value]) -> Result<Computed, Failed> {
        match self.run_time_max {
            Some(time_max) => self.session.run_within(inputs, time_max),
            None => self.session.run(inputs),
        }?;
        let outputs = self.session.take_outputs()?;
        Ok(Computed { outputs, on_kernels: self.session.coverage().reference == 0 })
    }
}

/// The operator that computes an output of a model, for the report: `Conv (opset 17)`.
pub(crate) fn producer(graph: &Graph, output: usize) -> Option<String> {
    let value = *graph.outputs.get(output)?;
    let node = graph.nodes.iter().find(|node| node.outputs.contains(&value))?;
    Some(node.origin.clone())
}
