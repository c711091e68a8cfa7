use crate::packed::Packer;
use crate::{CompileError, CompileOptions, ComputeUnit, Executable, Footprint, Session, TensorDesc};
use halimede_graph::Graph;
use halimede_graph::passes::{PassOptions, PassReport, optimize};
use std::sync::Arc;

/// A model compiled for a unit, shared by all its instances.
pub struct Model {
    executable: Arc<dyn Executable>,
    graph: Graph,
    reports: Vec<PassReport>,
}

/// Choices for [`Model::compile`].
#[derive(Debug, Clone)]
pub struct ModelOptions {
    /// For the passes that rewrite the graph first; none run where `None`.
    pub passes: Option<PassOptions>,
    /// For the unit.
    pub compile: CompileOptions,
}

impl Default for ModelOptions {
    fn default() -> ModelOptions {
        ModelOptions { passes: Some(PassOptions::default()), compile: CompileOptions::default() }
    }
}

impl Model {
    /// Rewrites a graph by the passes and compiles it for a unit.
    pub fn compile(graph: Graph, unit: &dyn ComputeUnit, options: &ModelOptions) -> Result<Model, CompileError> {
        Model::compile_packed(graph, unit, options, &Packer::default())
    }

    /// The same with weights that `packer` packs or finds.
    pub fn compile_packed(
        mut graph: Graph,
        unit: &dyn ComputeUnit,
        options: &ModelOptions,
        packer: &Packer,
    ) -> Result<Model, CompileError> {
        let reports = options.passes.as_ref().map_or_else(Vec::new, |passes| optimize(&mut graph, passes));
        let executable = unit.compile(&graph, &options.compile, packer)?;
        Ok(Model { executable, graph, reports })
    }

    /// What each pass did.
    pub fn reports(&self) -> &[PassReport] {
        &self.reports
    }

    /// What the passes of the unit did.
    pub fn unit_reports(&self) -> &[PassReport] {
        self.executable.rewrites()
    }

    /// The graph that was compiled, after the passes.
    pub fn graph(&self) -> &Graph {
        &self.graph
    }

    /// A place to run in.
    pub fn session(&self) -> Session {
        self.executable.clone().session()
    }

    /// The same model under other options. The passes have run.
    pub(crate) fn recompiled(&self, unit: &dyn ComputeUnit, options: &CompileOptions) -> Result<Model, CompileError> {
        self.repacked(unit, options, &Packer::default())
    }

    /// The same with weights that `packer` packs or finds.
    pub fn repacked(
        &self,
        unit: &dyn ComputeUnit,
        options: &CompileOptions,
        packer: &Packer,
    ) -> Result<Model, CompileError> {
        let executable = unit.compile(&self.graph, options, packer)?;
        Ok(Model { executable, graph: self.graph.clone(), reports: self.reports.clone() })
    }

    /// Names of the nodes that round what they multiply to 16 bits, because of the precision.
    pub fn reduced(&self) -> Vec<String> {
        self.executable.reduced()
    }

    /// Bytes that a session takes for a run of inputs of these shapes; `None` where that shows only when it runs.
    pub fn run_bytes(&self, inputs: &[TensorDesc]) -> Option<usize> {
        self.session().run_bytes(inputs)
    }

    /// The memory that it holds, without that of its sessions.
    pub fn footprint(&self) -> Footprint {
        self.executable.footprint(&self.graph)
    }
}
