use crate::kernels::{self, Blocking, Kernels, Machine};
use crate::precision;
use crate::{Blas, IntegerMatrix, Isa, Matrix, MatrixUnits, Pool};
use halimede_compute::packed::Packer;
use halimede_compute::tuning::Choices;
use halimede_compute::{
    BandsOf, Capabilities, CompileError, CompileOptions, ComputeUnit, CostHint, Executable, OpDesc, Precision, Program,
};
use halimede_graph::{Graph, Node, Op, passes};
use halimede_tensor::Tensor;
use std::str::FromStr;
use std::sync::Arc;

/// The hash of the sources that decide how weights are packed, `build.rs` makes it: packed weights that another version
/// left in a file are never taken for this one's, whether somebody thought of that or not.
const SOURCES: &str = env!("HALIMEDE_LAYOUT_SOURCES");

/// The CPU as a compute unit.
#[derive(Clone)]
pub struct CpuUnit {
    /// For exact precision, which multiplies without a matrix unit.
    exact: Machine,
    units: MatrixUnits,
    bytes_max: usize,
}

/// Choices for the CPU unit.
#[derive(Debug, Clone, Default)]
pub struct CpuOptions {
    /// Threads that run one operation together; every core where `None`.
    pub threads: Option<usize>,
    /// The instruction set; the widest of the machine where `None`.
    pub isa: Option<Isa>,
    /// Which matrix units multiply.
    pub matrix: MatrixUnits,
    /// Where convolutions run by Winograd's algorithm.
    pub winograd: Winograd,
    /// Which values between products are blocked.
    pub blocked: BlockedLayouts,
    /// Which images go through several steps in bands of rows.
    pub bands: BandsOf,
    /// Configurations of kernels that were measured to be fastest on this machine.
    pub choices: Arc<Choices>,
    /// Memory that the tensors of one run may take; half of the machine's, or of its container's, where
    /// `None`: a step outside of the plan may hold as much again while it writes its outputs.
    pub bytes_max: Option<usize>,
}

/// Where convolutions of 3 x 3 run by Winograd's algorithm.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Winograd {
    /// Where it was measured to be faster (`docs/benchmarks/winograd.md`).
    #[default]
    WherePays,
    /// Nowhere.
    Never,
    /// Wherever it is defined in f32, in tiles of 2 x 2 outputs. This and the following are for measurements.
    F2,
    /// The same in tiles of 4 x 4.
    F4,
    /// The same in tiles of 6 x 6.
    F6,
    /// In tiles of 2 x 2 wherever factors may be of bf16, to which transforms are rounded, and nowhere in f32.
    F2OfBf16,
}

/// Which values between products are blocked ([`halimede_compute::layout`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum BlockedLayouts {
    /// Those of products on Intel AMX, where it was measured to be faster (`docs/benchmarks/layouts.md`).
    #[default]
    WherePays,
    /// None. This and the following are for measurements and tests.
    Never,
    /// All that can be.
    Everywhere,
}

impl FromStr for BlockedLayouts {
    type Err = UnknownLayouts;

    fn from_str(name: &str) -> Result<BlockedLayouts, UnknownLayouts> {
        match name {
            "where-pays" => Ok(BlockedLayouts::WherePays),
            "row-major" => Ok(BlockedLayouts::Never),
            "blocked" => Ok(BlockedLayouts::Everywhere),
            _ => Err(UnknownLayouts(name.to_owned())),
        }
    }
}

/// A name that is no choice of layouts.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is no choice of layouts: it is where-pays, row-major or blocked")]
pub struct UnknownLayouts(String);

impl Winograd {
    /// The choice where nothing was measured.
    pub(crate) fn unmeasured(self) -> Winograd {
        if self == Winograd::WherePays { Winograd::Never } else { self }
    }
}

impl CpuUnit {
    /// The unit with a pool of its own.
    pub fn new(options: &CpuOptions) -> CpuUnit {
        let cores = || std::thread::available_parallelism().map_or(1, |cores| cores.get());
        let pool = Arc::new(Pool::new(options.threads.unwrap_or_else(cores)));
        let usable = || halimede_platform::memory::machine().usable().and_then(|bytes| usize::try_from(bytes).ok());
        let bytes_max = options.bytes_max.or_else(|| usable().map(|bytes| bytes / 2)).unwrap_or(usize::MAX);
        let isa = options.isa.unwrap_or_else(Isa::detect);
        let exact = Machine {
            isa,
            matrix: None,
            halves: None,
            integers: IntegerMatrix::PORTABLE,
            blas: None,
            winograd: options.winograd,
            blocked: options.blocked,
            bands: options.bands,
            pool,
            choices: options.choices.clone(),
            blocking: Blocking::default(),
        };
        CpuUnit { exact, units: options.matrix.clone(), bytes_max }
    }
}

impl ComputeUnit for CpuUnit {
    fn name(&self) -> &str {
        "cpu"
    }

    fn describe(&self) -> Capabilities {
        Capabilities {
            device: std::env::consts::ARCH.to_owned(),
            features: [self.exact.isa.name()]
                .into_iter()
                .chain(self.units.blas().map(Blas::name))
                .map(str::to_owned)
                .chain(self.units.balanced_by())
                .collect(),
            threads: self.exact.pool.threads(),
            precisions: [
                (Precision::Exact, true),
                (Precision::Balanced, self.units.balanced_by().is_some()),
                (Precision::Fast, self.units.multiplies_integers()),
            ]
            .into_iter()
            .filter_map(|(precision, is_there)| is_there.then_some(precision))
            .collect(),
        }
    }

    fn supports(&self, operation: &OpDesc<'_>) -> Option<CostHint> {
        Kernels::new(self.exact.clone()).cost(operation)
    }

    fn compile(
        &self,
        part: &Graph,
        options: &CompileOptions,
        packer: &Packer,
    ) -> Result<Arc<dyn Executable>, CompileError> {
        let (mut graph, mut machine) = (part.clone(), Machine { blas: self.units.blas(), ..self.exact.clone() });
        if options.precision != Precision::Exact {
            machine.matrix = self.units.matrix();
            machine.halves = self.units.halves();
        }
        if !options.integers.is_empty() {
            passes::multiply_integers(&mut graph, &options.integers);
        }
        if machine.matrix.is_some() {
            precision::narrow(&mut graph, &options.exact_nodes, !options.integers.is_empty(), machine.isa);
        } else if machine.halves.is_some() {
            precision::halve(&mut graph, &options.exact_nodes);
        }
        if precision::has_integers(&graph) {
            machine.integers = self.units.integers();
        }
        let rewrites = passes::finish(&mut graph);
        let kernels: Arc<dyn halimede_compute::Kernels> = Arc::new(Kernels::new(machine));
        Ok(Arc::new(Program::new(graph, &kernels, self.bytes_max, packer)?.rewritten(rewrites)))
    }

    fn layouts(&self, options: &CompileOptions) -> String {
        // Which unit is the fastest was measured: nobody who computes exactly has to wait for that.
        let is_exact = options.precision == Precision::Exact;
        let matrix = if is_exact { None } else { self.units.matrix().map(Matrix::name) };
        let halves = if is_exact { None } else { self.units.halves() };
        let blas = self.units.blas().map(Blas::name);
        let Machine { isa, winograd, choices, .. } = &self.exact;
        let halves = halves.map_or_else(String::new, |halves| format!(" {}", halves.name()));
        format!("{SOURCES} {} {blas:?} {matrix:?}{halves} {winograd:?} {:016x}", isa.name(), choices.fingerprint())
    }

    fn factors_of_integers(&self) -> f64 {
        // Of 32 to 1024, on class M: best for MobileNetV2 and ResNet-50, level for BERT-base and EfficientNet-B0.
        const WITH_TILES: f64 = 256.0;
        // By the peaks of both: what 8 bits save takes vectors four times as long, and rounding takes the same.
        const WITH_VECTORS: f64 = 64.0;
        if self.units.integers().has_tiles() { WITH_TILES } else { WITH_VECTORS }
    }

    fn is_as_fast_in_floats(&self, graph: &Graph, node: &Node) -> bool {
        // Sums of fewer products take longer to be scaled than widened bytes save (docs/benchmarks/avx2.md).
        const DEPTH_OF_WIDENED: usize = 64;
        let Op::Conv(op) = &node.op else { return false };
        let weights = node.inputs.get(1).and_then(|&weights| graph.constant(weights?)).map_or(&[][..], Tensor::shape);
        let depth: usize = weights.iter().skip(1).product();
        if depth < DEPTH_OF_WIDENED && self.units.integers().widens() {
            return true;
        }
        // Where Winograd's algorithm pays was measured beside the unit's own kernels.
        kernels::saves_multiplications(op, graph, node, &self.exact)
            && self.units.blas().is_none()
            && self.units.f32_keeps_up_with_integers()
    }

    fn tuned(&self, choices: Arc<Choices>) -> Arc<dyn ComputeUnit> {
        Arc::new(CpuUnit { exact: Machine { choices, ..self.exact.clone() }, ..self.clone() })
    }
}
