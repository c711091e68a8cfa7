//! The contract between placement and a compute unit.

use crate::packed::Packer;
use crate::tuning::Choices;
use crate::{CompileError, Footprint, Session, TensorDesc};
use halimede_graph::passes::PassReport;
use halimede_graph::{Graph, Node, Op, Range};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

/// One place where models run: a CPU, a GPU, a Neural Engine.
pub trait ComputeUnit: Send + Sync {
    /// The name that users say: `cpu`, `gpu:0`, `neural-engine`.
    fn name(&self) -> &str;

    /// What the unit has.
    fn describe(&self) -> Capabilities;

    /// Whether the unit has a kernel for an operation, and what it would cost.
    fn supports(&self, operation: &OpDesc<'_>) -> Option<CostHint>;

    /// Compiles a graph or a part of one, whose weights `packer` packs. May be slow; the result serves all shapes.
    fn compile(
        &self,
        part: &Graph,
        options: &CompileOptions,
        packer: &Packer,
    ) -> Result<Arc<dyn Executable>, CompileError>;

    /// What the layouts of weights depend on beside the graph and these options: the version of the kernels, what of the
    /// machine they use. Weights that were packed under the same text can be read.
    fn layouts(&self, options: &CompileOptions) -> String;

    /// How often a number has to be multiplied for products of integers to pay, where rounding it takes a step of its own.
    fn factors_of_integers(&self) -> f64;

    /// Whether a product or convolution of floats takes no more time than it would take with integers: a unit may have
    /// an algorithm for floats that there is not for integers, or gain less by those than scaling their sums takes.
    fn is_as_fast_in_floats(&self, graph: &Graph, node: &Node) -> bool;

    /// The same unit, on the same threads, whose kernels are told these configurations. What was compiled before keeps
    /// those that it was told.
    fn tuned(&self, choices: Arc<Choices>) -> Arc<dyn ComputeUnit>;
}

/// What a unit has, for listings.
#[derive(Debug, Clone, Default)]
pub struct Capabilities {
    /// What the hardware calls itself.
    pub device: String,
    /// Instruction sets or features in use.
    pub features: Vec<String>,
    /// Workers that run one operation together.
    pub threads: usize,
    /// Precisions that run natively.
    pub precisions: Vec<Precision>,
}

/// An operation with what is known of its operands.
#[derive(Debug, Clone)]
pub struct OpDesc<'a> {
    /// The operation.
    pub op: &'a Op,
    /// Inputs; `None` where missing.
    pub inputs: &'a [Option<TensorDesc>],
    /// Outputs.
    pub outputs: &'a [TensorDesc],
}

/// What an operation costs on a unit, as far as known without running it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CostHint {
    /// Arithmetic operations.
    pub operations: f64,
    /// Bytes read and written.
    pub bytes: f64,
}

/// How exactly a model is computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Precision {
    /// f32 as the model says.
    #[default]
    Exact,
    /// 16-bit products, f32 sums.
    Balanced,
    /// 8-bit products where [`CompileOptions::integers`] names them, 16-bit ones elsewhere.
    Fast,
}

impl Precision {
    /// Those that there are, with their names.
    const NAMES: [(&str, Precision); 3] =
        [("exact", Precision::Exact), ("balanced", Precision::Balanced), ("fast", Precision::Fast)];
}

impl fmt::Display for Precision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let named = Precision::NAMES.iter().find(|(_, precision)| precision == self);
        f.write_str(named.map_or("", |(name, _)| name))
    }
}

impl FromStr for Precision {
    type Err = UnknownPrecision;

    fn from_str(name: &str) -> Result<Precision, UnknownPrecision> {
        let known = Precision::NAMES.iter().find(|(known, _)| *known == name);
        known.map(|(_, precision)| *precision).ok_or_else(|| UnknownPrecision(name.to_owned()))
    }
}

/// A name that is no precision's.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is no precision: it is exact, balanced or fast")]
pub struct UnknownPrecision(String);

/// Choices for [`ComputeUnit::compile`].
#[derive(Debug, Clone, Default, PartialEq)]
pub struct CompileOptions {
    /// How exactly to compute.
    pub precision: Precision,
    /// Names of nodes that compute exactly all the same.
    pub exact_nodes: BTreeSet<String>,
    /// Names of products that multiply 8-bit integers, with the ranges of what they multiply, and of what they add
    /// ([`halimede_graph::passes::residuals`]).
    pub integers: BTreeMap<String, Range>,
}

impl From<Precision> for CompileOptions {
    fn from(precision: Precision) -> CompileOptions {
        CompileOptions { precision, ..CompileOptions::default() }
    }
}

/// A compiled graph, shared by every instance of a model.
pub trait Executable: Send + Sync {
    /// A place to run in, with memory of its own. One run at a time.
    fn session(self: Arc<Self>) -> Session;

    /// A listing of kernels for people.
    fn describe(&self) -> Vec<String>;

    /// The memory that it holds together with the graph that it was compiled from.
    fn footprint(&self, source: &Graph) -> Footprint;

    /// Names of the nodes that round what they multiply to 16 bits, because of the precision, in running order.
    fn reduced(&self) -> Vec<String>;

    /// What the unit's own passes did to the graph.
    fn rewrites(&self) -> &[PassReport] {
        &[]
    }
}
