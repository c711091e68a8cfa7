use crate::{CompileError, CompileOptions, ComputeUnit, Executable, Session};
use halimede_graph::Graph;
use std::sync::Arc;

/// A model compiled for a unit, shared by all its instances.
pub struct Model {
    executable: Arc<dyn Executable>,
    graph: Graph,
}

/// Choices for [`Model::compile`].
#[derive(Debug, Clone, Default)]
pub struct ModelOptions {
    /// For the unit.
    pub compile: CompileOptions,
}

impl Model {
    /// Compiles a graph for a unit.
    pub fn compile(graph: Graph, unit: &dyn ComputeUnit, options: &ModelOptions) -> Result<Model, CompileError> {
        let executable = unit.compile(&graph, &options.compile)?;
        Ok(Model { executable, graph })
    }

    /// The graph that was compiled.
    pub fn graph(&self) -> &Graph {
        &self.graph
    }

    /// A place to run in.
    pub fn session(&self) -> Session {
        self.executable.clone().session()
    }

    /// Bytes of weights in the unit's own layout.
    pub fn packed_bytes(&self) -> usize {
        self.executable.packed_bytes()
    }
}
