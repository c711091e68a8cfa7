//! The kernels by core operator: one visible list.

mod attention;
#[cfg(test)]
mod blas_tests;
mod cast;
mod concat;
mod contract;
mod conv;
#[cfg(test)]
mod conv_tests;
mod copy;
mod cuts;
mod ending;
mod epilogue;
mod gather;
#[cfg(test)]
mod grouped_tests;
#[cfg(test)]
mod halves_tests;
#[cfg(test)]
mod in_place_tests;
#[cfg(test)]
mod integer_tests;
mod lines;
mod map;
#[cfg(test)]
mod movement_tests;
mod norm;
mod number;
#[cfg(test)]
mod number_tests;
mod packed;
mod parameters;
mod parts;
mod pool;
mod products;
mod quantize;
mod reduce;
mod resize;
mod rnn;
mod rope;
mod rows;
mod running;
mod scatter;
mod softmax;
#[cfg(test)]
mod tests;
mod tiled;
mod transpose;
mod tuning;
#[cfg(test)]
mod tuning_tests;

use crate::halves::Halves;
use crate::{Blas, BlockedLayouts, IntegerMatrix, Isa, Matrix, Pool, Winograd};
pub(crate) use conv::{saves_multiplications, takes_taps, takes_tiles};
use gather::{GatherKernel, Gathering};
use halimede_compute::layout::Stance;
use halimede_compute::packed::Packer;
use halimede_compute::tuning::{Choices, Tunable};
use halimede_compute::{BandsOf, CostHint, Kernel, OpDesc};
use halimede_graph::ops::Factors;
use halimede_graph::{Graph, Node, Op};
use parts::{Parts, PartsKernel};
use scatter::{ScatterKernel, Scattering};
use std::sync::Arc;
pub(crate) use tuning::Blocking;
pub use tuning::VERSION;

/// What every kernel gets: the instruction set, the matrix unit and the threads.
#[derive(Clone)]
pub(crate) struct Machine {
    pub isa: Isa,
    /// For products of bf16; without it they run by their definition.
    pub matrix: Option<Matrix>,
    /// For products of f16; without it they run by their definition.
    pub halves: Option<Halves>,
    /// For products of integers.
    pub integers: IntegerMatrix,
    /// For products of f32 in whole matrices; without it they run on the kernels' own loops.
    pub blas: Option<Blas>,
    pub winograd: Winograd,
    pub blocked: BlockedLayouts,
    pub bands: BandsOf,
    pub pool: Arc<Pool>,
    /// What was measured to be fastest.
    pub choices: Arc<Choices>,
    /// What of that holds for the step that is made.
    pub blocking: Blocking,
}

impl Machine {
    /// Threads that run a step together.
    pub fn threads(&self) -> usize {
        self.blocking.threads.map_or(self.pool.threads(), |threads| threads.min(self.pool.threads()))
    }

    /// The machine for a step about which `tunable` tells what was chosen.
    pub fn blocked(&self, tunable: impl FnOnce() -> Option<Tunable>) -> Machine {
        let chosen = if self.choices.is_empty() { None } else { tunable().and_then(|tunable| tunable.chosen) };
        Machine { blocking: chosen.as_ref().map(Blocking::from).unwrap_or_default(), ..self.clone() }
    }

    /// The stance of products of such factors about operands that may be blocked; `None` where nothing is.
    pub fn blocked_stance(&self, multiply: Factors) -> Option<Stance> {
        let gains = || match multiply {
            Factors::Bf16 => self.matrix.is_some_and(Matrix::gains_by_blocks),
            // Values between products of f16 are f32.
            Factors::F16 => false,
            Factors::Integers => self.integers.gains_by_blocks(),
        };
        let is_blocked = match self.blocked {
            BlockedLayouts::WherePays => gains(),
            BlockedLayouts::Never => false,
            BlockedLayouts::Everywhere => true,
        };
        is_blocked.then_some(Stance::Faster)
    }

    /// Whether some values may be blocked.
    pub fn blocks_values(&self) -> bool {
        [Factors::Bf16, Factors::Integers].into_iter().any(|factors| self.blocked_stance(factors).is_some())
    }

    /// The name of the unit that multiplies such factors.
    pub fn unit_name(&self, multiply: Option<Factors>) -> Option<String> {
        Some(match multiply? {
            Factors::Bf16 => self.matrix?.name().to_owned(),
            Factors::F16 => self.halves?.name(),
            Factors::Integers => self.integers.name().to_owned(),
        })
    }

    /// What multiplies whole matrices for an operation with such factors.
    pub fn blas_for(&self, multiply: Option<Factors>) -> Option<Blas> {
        self.blas.filter(|_| multiply.is_none())
    }
}

/// The CPU's kernels.
pub(crate) struct Kernels {
    machine: Machine,
}

impl Kernels {
    pub fn new(machine: Machine) -> Kernels {
        Kernels { machine }
    }

    /// What the operation costs, where a kernel takes it.
    pub fn cost(&self, operation: &OpDesc<'_>) -> Option<CostHint> {
        let graph = Graph::default();
        let node = Node {
            name: String::new(),
            origin: String::new(),
            op: operation.op.clone(),
            inputs: Default::default(),
            outputs: Default::default(),
        };
        let kernel = halimede_compute::Kernels::kernel(self, &graph, &node, &Packer::default())?;
        kernel.prepare(operation.inputs, operation.outputs).ok()?;
        CostHint::of(operation.op, operation.inputs, operation.outputs)
    }
}

impl halimede_compute::Kernels for Kernels {
    fn threads(&self) -> usize {
        self.machine.pool.threads()
    }

    fn bands(&self) -> BandsOf {
        self.machine.bands
    }

    fn kernel(&self, graph: &Graph, node: &Node, packer: &Packer) -> Option<Box<dyn Kernel>> {
        let machine = self.machine.clone();
        let gather = |gathering, machine| Box::new(GatherKernel { gathering, machine });
        let parts = |parts, machine| Box::new(PartsKernel { parts, machine });
        let scatter = |scattering, reduction, machine| Box::new(ScatterKernel { scattering, reduction, machine });
        Some(match &node.op {
            Op::ArgReduce(op) => Box::new(running::ArgReduceKernel { op: op.clone(), machine }),
            Op::Attention(op) => Box::new(attention::AttentionKernel::new(op, graph, node, machine)),
            Op::Cast(op) => Box::new(cast::CastKernel { op: op.clone(), machine }),
            Op::Concat(op) => Box::new(concat::ConcatKernel { op: op.clone(), machine }),
            Op::Contract(op) => Box::new(contract::ContractKernel::new(op, graph, node, machine, packer)),
            Op::Conv(op) => Box::new(conv::ConvKernel::new(op, graph, node, machine, packer)),
            Op::Cumulative(op) => Box::new(running::CumulativeKernel { op: op.clone(), machine }),
            Op::Dequantize(op) => Box::new(quantize::DequantizeKernel { op: op.clone(), machine }),
            Op::Expand(_) => parts(Parts::Expand, machine),
            Op::Gather(op) => gather(Gathering::Slices { axis: op.axis }, machine),
            Op::GatherElements(op) => gather(Gathering::Elements { axis: op.axis }, machine),
            Op::GatherNd(op) => gather(Gathering::Tuples { batch_dims: op.batch_dims }, machine),
            Op::Map(op) => Box::new(map::MapKernel::new(op.clone(), machine)),
            Op::Norm(op) => Box::new(norm::NormKernel { op: op.clone(), machine }),
            Op::Pad(op) => parts(Parts::Pad(op.mode), machine),
            Op::Pool(op) => Box::new(pool::PoolKernel { op: op.clone(), machine }),
            Op::Products(op) => Box::new(products::ProductsKernel::new(op, graph, node, machine, packer)),
            Op::Quantize(op) => Box::new(quantize::QuantizeKernel { op: op.clone(), machine }),
            Op::Range(_) => Box::new(running::RangeKernel),
            Op::Reduce(op) => Box::new(reduce::ReduceKernel { op: op.clone(), machine }),
            Op::Resize(op) => Box::new(resize::ResizeKernel::new(op, graph, node, machine)),
            Op::Rnn(op) => Box::new(rnn::RnnKernel::new(op, graph, node, machine, packer)),
            Op::Rope(op) => Box::new(rope::RopeKernel { op: op.clone(), machine }),
            Op::ScatterElements(op) => scatter(Scattering::Elements { axis: op.axis }, op.reduction, machine),
            Op::ScatterNd(op) => scatter(Scattering::Tuples, op.reduction, machine),
            Op::Slice(_) => parts(Parts::Slice, machine),
            Op::Softmax(op) => Box::new(softmax::SoftmaxKernel { op: op.clone(), machine }),
            Op::Tile(_) => parts(Parts::Tile, machine),
            Op::TopK(op) => Box::new(running::TopKKernel { op: op.clone(), machine }),
            Op::Transpose(op) => Box::new(transpose::TransposeKernel { op: op.clone(), machine }),
            _ => return None,
        })
    }
}
