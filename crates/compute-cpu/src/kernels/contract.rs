//! Sums of products: every matrix product, batched and transposed in any way.

mod blas;
mod bnns;
mod generic;
mod grouped;
mod halves;
mod layout;
mod tiled;

use super::Machine;
use super::ending::{Ending, UNBOUNDED};
use super::epilogue::{Common, Epilogue};
use super::packed::{PackedWeights, f32_bytes};
use super::tiled::{Finish, IntegerWeights, Product, TiledWeights};
use super::tuning::{Offer, Order, Pack};
use crate::gemm::{self, Copies, End, Left, Micro, Target};
use crate::grouped::{GroupedWeights, Source};
use crate::map::Register;
use crate::matrix::{BLOCK, Factor, MatrixUnit, TILE};
use crate::pool::own_bytes;
use crate::real::{Converts, Numbers};
use crate::{Blas, Isa};
use blas::BlasStep;
use generic::GenericStep;
use grouped::GroupedStep;
use half::{bf16, f16};
use halimede_compute::layout::{Layouts, Stance, Stances};
use halimede_compute::packed::Packer;
use halimede_compute::tuning::{Operator, Tunable};
use halimede_compute::{Arguments, Kernel, Prepared, Step, Tasks, TensorDesc};
use halimede_graph::ops::{Contract, Factors, Map, has_many_rows, whole_weights};
use halimede_graph::{Graph, Node, OpError};
use halimede_tensor::{DType, Element, Tensor, View};
pub(super) use layout::{Layout, Operand};
use smallvec::SmallVec;
use std::sync::Arc;
pub(super) use tiled::{TiledStep, packs, usual_pack};

/// Rows of A that one task takes: its part of C stays in the second-level cache.
pub(super) const TASK_ROWS: usize = 96;
/// Rows of weights in groups that are unpacked at a time: they stay in the first-level cache until they are stored.
const UNPACKED_ROWS: usize = 64;
/// Panels of B that one task takes: the most of these of which there are tasks enough for all threads. Each task copies rows of A that
/// would evict each other from the cache, so that few tasks copy less (`docs/benchmarks/gaps-z.md#products-in-f32`).
pub(super) const TASK_PANELS: [usize; 3] = [32, 16, 8];
/// So many tasks for each thread are enough: then it matters little that some rows are left over.
const TASKS_ENOUGH: usize = 8;

pub(super) struct ContractKernel {
    op: Contract,
    machine: Machine,
    micro: Micro,
    name: String,
    weights: Option<Packed>,
}

/// A constant right operand in the order of the loop that reads it.
enum Packed {
    Panels(Arc<Weights>),
    Tiled(Arc<TiledWeights>),
    Integers(IntegerWeights),
    Grouped(Arc<GroupedWeights>),
    Halves(Arc<TiledWeights<f16>>),
}

/// Where panels of the right operand come from.
#[derive(Clone)]
pub(super) enum Right<P> {
    /// They are there.
    Packed(Arc<P>),
    /// Unpacked at every run.
    Grouped(Arc<GroupedWeights>),
    /// Packed from the operand at every run.
    Operand,
}

/// A constant right operand in panels.
struct Weights {
    shape: Vec<usize>,
    n: usize,
    k: usize,
    panels: PackedWeights,
}

impl<P> From<Option<Arc<P>>> for Right<P> {
    fn from(packed: Option<Arc<P>>) -> Right<P> {
        packed.map_or(Right::Operand, Right::Packed)
    }
}

impl ContractKernel {
    pub fn new(op: &Contract, graph: &Graph, node: &Node, machine: Machine, packer: &Packer) -> ContractKernel {
        let micro = Micro::new(machine.isa);
        let constant = node.inputs.get(1).copied().flatten().and_then(|value| graph.constant(value));
        // Very many columns without an element are not walked.
        let constant = constant.filter(|tensor| !tensor.is_empty() || !has_many_rows(tensor.shape()));
        let weights = constant.and_then(|tensor| match op.multiply {
            _ if op.dequantize.is_some() => pack_grouped(op, graph, node, packer).map(Arc::new).map(Packed::Grouped),
            // The library reads matrices as they lie.
            None if machine.blas.is_some() => None,
            None => Weights::pack(op, tensor, &micro, packer).map(Arc::new).map(Packed::Panels),
            Some(Factors::Bf16) => {
                machine.matrix?;
                pack_tiled::<bf16, f32>(op, tensor, machine.isa, packer).map(Arc::new).map(Packed::Tiled)
            }
            Some(Factors::F16) => {
                machine.halves?;
                pack_tiled::<f16, f32>(op, tensor, machine.isa, packer).map(Arc::new).map(Packed::Halves)
            }
            Some(Factors::Integers) => {
                let whole = whole_weights(tensor, op.column_axis()?).ok()?;
                pack_tiled::<i8, i8>(op, &whole, machine.isa, packer).map(IntegerWeights::new).map(Packed::Integers)
            }
        });
        let packed = match &weights {
            Some(Packed::Grouped(weights)) => weights.grouping.width.name(),
            Some(_) => ", packed weights",
            None => "",
        };
        let blas = machine.blas_for(op.multiply).filter(|_| op.dequantize.is_none()).map(Blas::name);
        // Products of f16 whose weights are not packed are those of f32.
        let multiply = op.multiply.filter(|&multiply| multiply != Factors::F16 || weights.is_some());
        let by = machine.unit_name(multiply).unwrap_or_else(|| blas.unwrap_or(micro.name()).to_owned());
        let name = format!("gemm {by}{packed}");
        ContractKernel { op: op.clone(), machine, micro, name, weights }
    }
}

fn pack_tiled<N: Element, T: Converts<N>>(
    op: &Contract,
    tensor: &Tensor,
    isa: Isa,
    packer: &Packer,
) -> Option<TiledWeights<N>> {
    let elements = tensor.bytes().ok().filter(|_| tensor.dtype() == T::DTYPE)?.as_ptr().cast::<T>();
    let (n, k) = layout::weight_axes(op, tensor.shape())?;
    let (sizes, strides) = ((n.size, k.size), (k.stride, n.stride));
    // SAFETY: the strides are those of the tensor, whose elements the bytes hold.
    unsafe { TiledWeights::pack((isa, packer), elements, tensor.shape(), &[0], strides, sizes) }
}

/// Weights whose dequantisation is part of the product.
fn pack_grouped(op: &Contract, graph: &Graph, node: &Node, packer: &Packer) -> Option<GroupedWeights> {
    let (column, dequantize) = (op.column_axis()?, op.dequantize.as_ref()?);
    let constant = |at: usize| Some(graph.constant(node.inputs.get(at).copied().flatten()?));
    let (codes, scales) = (constant(1)??, constant(2)??);
    let zeros = match constant(3) {
        Some(zeros) => Some(zeros?),
        None => None,
    };
    let along = dequantize.block == 0 && (dequantize.axis == column || scales.len() == 1);
    let across = dequantize.block > 0 && dequantize.axis == 1 - column;
    let source = Source { codes, scales, zeros, rows_first: column == 1, block: dequantize.block };
    layout::weight_axes(op, codes.shape()).filter(|_| along || across)?;
    GroupedWeights::pack(source, packer)
}

impl Weights {
    /// Packs a constant whose axes are summed ones and columns of the output, each kind together.
    fn pack(op: &Contract, tensor: &Tensor, micro: &Micro, packer: &Packer) -> Option<Weights> {
        let elements = f32_bytes(tensor)?;
        let (n, k) = layout::weight_axes(op, tensor.shape())?;
        let len = gemm::panels_len(micro, n.size, k.size);
        let panels = PackedWeights::new(packer, "panels", len, |panels| {
            let strides = (k.stride, n.stride);
            // SAFETY: the strides are those of the tensor, whose elements the bytes hold.
            unsafe { gemm::pack_columns(micro, elements.as_ptr().cast(), strides, (n.size, k.size), panels) };
        })?;
        Some(Weights { shape: tensor.shape().to_vec(), n: n.size, k: k.size, panels })
    }
}

impl Kernel for ContractKernel {
    fn name(&self) -> &str {
        &self.name
    }

    fn prepare(&self, inputs: &[Option<TensorDesc>], outputs: &[TensorDesc]) -> Result<Prepared, OpError> {
        self.prepare_laid_out(inputs, outputs, &Layouts::default())
    }

    fn stances(&self, inputs: &[Option<TensorDesc>], outputs: &[TensorDesc]) -> Option<Stances> {
        let (lhs, rhs, output) = (inputs.first()?.as_ref()?, inputs.get(1)?.as_ref()?, outputs.first()?);
        self.machine.blocked_stance(self.op.multiply?)?;
        let layout = Layout::new(&self.op, &lhs.shape, &rhs.shape, &output.shape, true)?;
        let map = self.op.epilogue.as_ref();
        match self.weights.as_ref()? {
            Packed::Tiled(weights) if weights.shape == rhs.shape[..] => {
                let finish = Finish::<bf16>::new(map, inputs, None, 2, output, self.machine.isa).ok()?;
                layout.stances(lhs.dtype, lhs.dtype == DType::Bf16, &finish, output, &self.machine)
            }
            Packed::Integers(weights) if weights.tiled.shape == rhs.shape[..] => {
                layout.integer_stances(lhs.dtype, weights, map, inputs, output, &self.machine)
            }
            _ => None,
        }
    }

    fn prepare_laid_out(
        &self,
        inputs: &[Option<TensorDesc>],
        outputs: &[TensorDesc],
        layouts: &Layouts,
    ) -> Result<Prepared, OpError> {
        let (Some(Some(lhs)), Some(Some(rhs))) = (inputs.first(), inputs.get(1)) else {
            return Err(OpError::invalid("a product needs two operands"));
        };
        let output = &outputs[0];
        let machine = self.machine.blocked(|| self.tunable(inputs, outputs));
        if self.op.dequantize.is_some() {
            return self.prepare_grouped(lhs, rhs, inputs, output, machine);
        }
        match self.op.multiply {
            Some(Factors::Bf16) => return self.prepare_tiled(lhs, rhs, inputs, output, layouts, machine),
            Some(Factors::F16) if self.weights.is_some() => {
                return self.prepare_halves(lhs, rhs, inputs, output, machine);
            }
            Some(Factors::Integers) => return self.prepare_integers(lhs, rhs, inputs, output, layouts, &machine),
            // Weights of a form that is not packed are multiplied as they are.
            Some(Factors::F16) | None => {}
        }
        if !layouts.are_row_major() {
            return Err(OpError::unsupported("a product of f32 in blocks"));
        }
        let f32s = [lhs, rhs, output].iter().all(|desc| desc.dtype == DType::F32);
        let extra = inputs.get(2..).unwrap_or_default();
        if f32s {
            let packed = match &self.weights {
                Some(Packed::Panels(weights)) if weights.shape == rhs.shape[..] => Some(weights.clone()),
                _ => None,
            };
            if let Some(layout) = Layout::new(&self.op, &lhs.shape, &rhs.shape, &output.shape, packed.is_some()) {
                let epilogue = Epilogue::new(self.op.epilogue.as_ref(), extra, output, self.machine.isa)?;
                if let Some(blas) = self.machine.blas
                    && let Some(operands) = BlasStep::operands(&layout)
                {
                    return Ok(BlasStep { layout, operands, epilogue, machine, blas }.prepared());
                }
                return Ok(
                    GemmStep::new(layout, packed.into(), epilogue, machine, self.micro, output.len()).prepared(2)
                );
            }
        }
        if self.weights.is_some() {
            return Err(OpError::unsupported("packed weights in another layout"));
        }
        if self.op.epilogue.is_some() {
            return Err(OpError::unsupported("an epilogue on this form of product"));
        }
        let step = GenericStep::new(&self.op, lhs, rhs, output, self.machine.clone())?;
        let workspace = step.workspace();
        Ok(Prepared { step: Box::new(step), workspace })
    }

    fn tunable(&self, inputs: &[Option<TensorDesc>], outputs: &[TensorDesc]) -> Option<Tunable> {
        // Blocking was measured for operands that are numbers, and is none of the library's business.
        (self.op.dequantize.is_none() && self.machine.blas_for(self.op.multiply).is_none()).then_some(())?;
        let offer = Offer::of_contract(&self.op, inputs, outputs.first()?, self.weights.is_some(), &self.machine)?;
        let weights = self.weights.is_some();
        let threads = self.machine.pool.threads();
        let operator = Operator::contract(&self.op, inputs, outputs.first()?, weights, threads)?;
        Some(offer.tunable(operator, &self.machine.choices))
    }

    fn in_place(&self) -> SmallVec<[(usize, usize); 2]> {
        match &self.weights {
            Some(Packed::Tiled(weights)) => weights.in_place(),
            Some(Packed::Halves(weights)) => weights.in_place(),
            Some(Packed::Integers(weights)) => weights.tiled.in_place(),
            _ => SmallVec::new(),
        }
    }

    fn consumed(&self) -> SmallVec<[usize; 2]> {
        match &self.weights {
            Some(Packed::Grouped(_)) => smallvec::smallvec![1, 2, 3],
            Some(_) => smallvec::smallvec![1],
            None => SmallVec::new(),
        }
    }

    fn packed_bytes(&self) -> usize {
        match &self.weights {
            Some(Packed::Panels(weights)) => weights.panels.bytes(),
            Some(Packed::Tiled(weights)) => weights.bytes(),
            Some(Packed::Integers(weights)) => weights.tiled.bytes(),
            Some(Packed::Grouped(weights)) => weights.bytes(),
            Some(Packed::Halves(weights)) => weights.bytes(),
            None => 0,
        }
    }
}

impl ContractKernel {
    /// Products of bf16 on the matrix unit.
    fn prepare_tiled(
        &self,
        lhs: &TensorDesc,
        rhs: &TensorDesc,
        inputs: &[Option<TensorDesc>],
        output: &TensorDesc,
        layouts: &Layouts,
        machine: Machine,
    ) -> Result<Prepared, OpError> {
        let Some(matrix) = self.machine.matrix else {
            return Err(OpError::unsupported(format!("products of {} and {} here", lhs.dtype, rhs.dtype)));
        };
        let packed = match &self.weights {
            Some(Packed::Tiled(weights)) if weights.shape == rhs.shape[..] => Some(weights.clone()),
            _ => None,
        };
        if packed.is_none() && self.weights.is_some() {
            return Err(OpError::unsupported("packed weights in another layout"));
        }
        let Some(layout) = Layout::new(&self.op, &lhs.shape, &rhs.shape, &output.shape, packed.is_some()) else {
            return Err(OpError::unsupported("this form of product in bf16"));
        };
        let layout = layout.laid_out(layouts, bf16::DTYPE.size(), output.dtype.size());
        let finish = Finish::new(self.op.epilogue.as_ref(), inputs, None, 2, output, self.machine.isa)?;
        let (left, right) = if layout.swapped { (rhs.dtype, lhs.dtype) } else { (lhs.dtype, rhs.dtype) };
        let step = (layout, Right::from(packed), finish, machine, matrix);
        match (left, right) {
            (DType::F32, DType::F32) => Ok(tiled_step::<bf16, f32, f32>(step)),
            (DType::F32, DType::Bf16) => Ok(tiled_step::<bf16, f32, bf16>(step)),
            (DType::Bf16, DType::F32) => Ok(tiled_step::<bf16, bf16, f32>(step)),
            (DType::Bf16, DType::Bf16) => Ok(tiled_step::<bf16, bf16, bf16>(step)),
            _ => Err(OpError::unsupported(format!("a product of {left} and {right} in bf16"))),
        }
    }

    /// Products with weights in groups: few rows read them as they are, more have them unpacked.
    fn prepare_grouped(
        &self,
        lhs: &TensorDesc,
        rhs: &TensorDesc,
        inputs: &[Option<TensorDesc>],
        output: &TensorDesc,
        machine: Machine,
    ) -> Result<Prepared, OpError> {
        let Some(Packed::Grouped(weights)) = &self.weights else {
            return Err(OpError::unsupported("weights of this form, dequantised by their product"));
        };
        let Some(layout) = Layout::new(&self.op, &lhs.shape, &rhs.shape, &output.shape, true) else {
            return Err(OpError::unsupported("this form of product with weights in groups"));
        };
        let (map, extra, isa) = (self.op.epilogue.as_ref(), self.op.first_extra(), machine.isa);
        let (few, rounds) = (layout.m <= grouped::ROWS_MAX, self.op.multiply == Some(Factors::Bf16));
        let (weights, finish) = (weights.clone(), Finish::new(map, inputs, None, extra, output, isa)?);
        match (few, lhs.dtype, machine.matrix.filter(|_| rounds)) {
            (true, DType::F32, _) => Ok(GroupedStep::<f32>::prepared(layout, weights, finish, machine, rounds)),
            (true, DType::Bf16, _) => Ok(GroupedStep::<bf16>::prepared(layout, weights, finish, machine, rounds)),
            (false, DType::F32, Some(matrix)) => {
                Ok(tiled_step::<bf16, f32, f32>((layout, Right::Grouped(weights), finish, machine, matrix)))
            }
            (false, DType::Bf16, Some(matrix)) => {
                Ok(tiled_step::<bf16, bf16, f32>((layout, Right::Grouped(weights), finish, machine, matrix)))
            }
            (false, DType::F32, None) if output.dtype == DType::F32 => {
                let epilogue = Epilogue::new(map, inputs.get(extra..).unwrap_or_default(), output, isa)?;
                let right = Right::Grouped(weights);
                Ok(GemmStep::new(layout, right, epilogue, machine, self.micro, output.len()).prepared(extra))
            }
            (_, dtype, _) => Err(OpError::unsupported(format!("a product of {dtype} and weights in groups"))),
        }
    }

    /// Products of integers on the integer unit.
    fn prepare_integers(
        &self,
        lhs: &TensorDesc,
        rhs: &TensorDesc,
        inputs: &[Option<TensorDesc>],
        output: &TensorDesc,
        layouts: &Layouts,
        machine: &Machine,
    ) -> Result<Prepared, OpError> {
        let weights = match &self.weights {
            Some(Packed::Integers(weights)) if weights.tiled.shape == rhs.shape[..] => weights,
            _ => return Err(OpError::unsupported("integer weights that vary")),
        };
        let Some(layout) = Layout::new(&self.op, &lhs.shape, &rhs.shape, &output.shape, true) else {
            return Err(OpError::unsupported("this form of product of integers"));
        };
        let layout = layout.laid_out(layouts, lhs.dtype.size(), output.dtype.size());
        layout.prepare_integers(lhs.dtype, weights, self.op.epilogue.as_ref(), inputs, output, machine)
    }
}

impl Layout {
    /// How data of `data` and a result that ends so may lie, on a unit that multiplies `F`.
    pub fn stances<F: Product>(
        &self,
        data: DType,
        are_factors: bool,
        finish: &Finish<F>,
        output: &TensorDesc,
        machine: &Machine,
    ) -> Option<Stances> {
        let stance = machine.blocked_stance(F::FACTORS)?;
        // Fewer rows are no tile.
        let stance = if self.m < TILE { Stance::Either } else { stance };
        let or_row_major = |takes: bool| if takes { stance } else { Stance::RowMajor };
        // What is not factors yet is packed row by row.
        let left = are_factors && self.takes_blocked_left(data.size());
        let output = self.takes_blocked_output(output.dtype.size());
        Some(finish.stances(or_row_major(left), or_row_major(output)))
    }

    /// The same of integers.
    pub fn integer_stances(
        &self,
        data: DType,
        weights: &IntegerWeights,
        map: Option<&Map>,
        inputs: &[Option<TensorDesc>],
        output: &TensorDesc,
        machine: &Machine,
    ) -> Option<Stances> {
        // Signs of the data make no difference to what ends the sums.
        let finish = Finish::<u8>::of_integers(map, inputs, weights, output, machine.isa).ok()?;
        let are_factors = data == DType::U8 || machine.integers.signed().is_some();
        self.stances(data, are_factors, &finish, output, machine)
    }

    /// A step of a product of integers with constant weights.
    pub fn prepare_integers(
        self,
        data: DType,
        weights: &IntegerWeights,
        map: Option<&Map>,
        inputs: &[Option<TensorDesc>],
        output: &TensorDesc,
        machine: &Machine,
    ) -> Result<Prepared, OpError> {
        let (isa, packed) = (machine.isa, Right::Packed(weights.tiled.clone()));
        match (data, machine.integers, machine.integers.signed()) {
            (DType::I8, _, Some(unit)) => {
                let finish = Finish::of_integers(map, inputs, weights, output, isa)?;
                Ok(tiled_step::<i8, i8, i8>((self, packed, finish, machine.clone(), unit)))
            }
            (DType::I8, unit, None) => {
                let finish = Finish::of_integers(map, inputs, weights, output, isa)?;
                Ok(tiled_step::<u8, i8, i8>((self, packed, finish, machine.clone(), unit)))
            }
            (_, unit, _) => {
                let finish = Finish::of_integers(map, inputs, weights, output, isa)?;
                Ok(tiled_step::<u8, u8, i8>((self, packed, finish, machine.clone(), unit)))
            }
        }
    }
}

type TiledParts<F> = (Layout, Right<TiledWeights<<F as Factor>::Right>>, Finish<F>, Machine, MatrixUnit<F>);

fn tiled_step<F: Product, L: Converts<F>, R: Converts<F::Right>>(parts: TiledParts<F>) -> Prepared {
    let (layout, right, finish, machine, matrix) = parts;
    TiledStep::<F, L, R>::new(layout, right, finish, machine, matrix).prepared()
}

struct GemmStep {
    layout: Layout,
    right: Right<Weights>,
    epilogue: Option<Epilogue>,
    /// The first input that the epilogue reads.
    extra: usize,
    machine: Machine,
    micro: Micro,
    panels: usize,
    empty: bool,
}

impl GemmStep {
    fn new(
        layout: Layout,
        right: Right<Weights>,
        epilogue: Option<Epilogue>,
        machine: Machine,
        micro: Micro,
        elements: usize,
    ) -> GemmStep {
        let (n, k) = (layout.n, layout.k);
        debug_assert!(!matches!(&right, Right::Packed(weights) if (weights.n, weights.k) != (n, k)));
        GemmStep {
            panels: n.div_ceil(micro.nr),
            layout,
            right,
            epilogue,
            extra: 2,
            machine,
            micro,
            empty: elements == 0,
        }
    }

    /// The step, whose epilogue reads inputs from `extra` on.
    fn prepared(self, extra: usize) -> Prepared {
        let workspace = self.workspace();
        Prepared { step: Box::new(GemmStep { extra, ..self }), workspace }
    }

    /// Elements of packed B per distinct right batch; 0 where it is packed already.
    fn packed_len(&self) -> usize {
        match self.right {
            Right::Packed(_) => 0,
            _ => gemm::panels_len(&self.micro, self.layout.n, self.layout.k),
        }
    }

    fn registers_bytes(&self) -> usize {
        self.epilogue.as_ref().map_or(0, |epilogue| epilogue.registers() * size_of::<Register>())
    }

    /// Per thread: registers of the epilogue, then scratch of the driver.
    fn thread_bytes(&self) -> usize {
        own_bytes(self.registers_bytes() + gemm::scratch_len(&self.micro) * size_of::<f32>())
    }

    fn packed_bytes(&self) -> usize {
        (self.packed_len() * self.layout.right_batches() * size_of::<f32>()).next_multiple_of(64)
    }

    fn task_rows(&self) -> usize {
        self.machine.blocking.rows.unwrap_or(TASK_ROWS)
    }

    fn task_panels(&self) -> usize {
        self.machine.blocking.panels.unwrap_or_else(|| {
            let (threads, rows) = (self.threads(), self.layout.batches() * self.layout.m.div_ceil(self.task_rows()));
            let are_enough = |panels: usize| rows * self.panels.div_ceil(panels) >= TASKS_ENOUGH * threads;
            let [most, .., least] = TASK_PANELS;
            if threads == 1 {
                most
            } else {
                TASK_PANELS.into_iter().find(|&panels| are_enough(panels)).unwrap_or(least)
            }
        })
    }

    fn workspace(&self) -> usize {
        self.packed_bytes() + self.thread_bytes() * self.machine.threads()
    }

    /// Which rows of the left operand are copied.
    fn copies(&self) -> Copies {
        match self.machine.blocking.pack {
            Some(Pack::None) => Copies::Never,
            Some(Pack::Rows | Pack::Tiles) => Copies::Always,
            _ => Copies::WherePays,
        }
    }

    /// Tasks of a batch: along the rows, and along the panels.
    fn grid(&self) -> (usize, usize) {
        (self.layout.m.div_ceil(self.task_rows()), self.panels.div_ceil(self.task_panels()))
    }
}

impl Step for GemmStep {
    fn run(&self, arguments: &Arguments<'_>) {
        self.begin(arguments);
        let (count, threads) = (self.count(), self.threads());
        self.machine.pool.run_tasks(threads.min(count), count, &|thread, task| self.run_task(arguments, thread, task));
    }

    fn tasks(&self) -> Option<&dyn Tasks> {
        Some(self)
    }
}

impl Tasks for GemmStep {
    fn count(&self) -> usize {
        let (row_tasks, panel_tasks) = self.grid();
        if self.empty { 0 } else { self.layout.batches() * row_tasks * panel_tasks }
    }

    fn threads(&self) -> usize {
        self.machine.threads()
    }

    fn sharing(&self) -> Option<String> {
        // A thread leaves nothing behind, but has its part where others do not.
        matches!(self.right, Right::Packed(_)).then(|| format!("{}", self.thread_bytes()))
    }

    fn begin(&self, arguments: &Arguments<'_>) {
        if self.empty {
            return;
        }
        assert!(arguments.workspace.len() >= self.workspace());
        let packed = arguments.workspace.as_ptr().cast::<f32>();
        match &self.right {
            Right::Packed(_) => {}
            Right::Grouped(weights) => self.unpack_right(weights, packed),
            Right::Operand => {
                let right = arguments.inputs[usize::from(!self.layout.swapped)];
                self.pack_right(right.map_or(std::ptr::null(), |view| view.as_ptr().cast::<f32>()), packed);
            }
        }
    }

    fn run_task(&self, arguments: &Arguments<'_>, thread: usize, task: usize) {
        let (row_tasks, panel_tasks) = self.grid();
        let (batch, task) = (task / (row_tasks * panel_tasks), task % (row_tasks * panel_tasks));
        // What the outer loop goes over stays near for some tasks.
        let (rows, columns) = match self.machine.blocking.order {
            Some(Order::Rows) => (task / panel_tasks, task % panel_tasks),
            _ => (task % row_tasks, task / row_tasks),
        };
        self.run_block(arguments, thread, batch, rows, columns);
    }
}

impl GemmStep {
    /// Packs the right operand of every batch into the workspace.
    fn pack_right(&self, right: *const f32, packed: *mut f32) {
        let (layout, nr) = (&self.layout, self.micro.nr);
        let panel_len = layout.k * nr;
        let (right, packed) = (SendPtr(right.cast_mut()), SendPtr(packed));
        self.machine.pool.run(layout.right_batches() * self.panels, &|part| {
            let (batch, p) = (part / self.panels, part % self.panels);
            let offset = layout.right_offset(batch);
            // SAFETY: the strides stay inside the operand; each part writes its own panel.
            unsafe {
                let panel = std::slice::from_raw_parts_mut(
                    packed.get().add(batch * self.packed_len() + p * panel_len),
                    panel_len,
                );
                let strides = (layout.right.k, layout.right.free);
                gemm::pack_panel(right.get().add(offset), strides, p * nr, layout.n, layout.k, nr, panel);
            }
        });
    }

    /// Unpacks weights in groups into the workspace, 32 columns at a time.
    fn unpack_right(&self, weights: &GroupedWeights, packed: *mut f32) {
        let (k, nr, packed) = (self.layout.k, self.micro.nr, SendPtr(packed));
        self.machine.pool.run(weights.grouping.panels(), &|part| {
            let mut lines = [[0f32; BLOCK]; UNPACKED_ROWS];
            for first in (0..k).step_by(UNPACKED_ROWS) {
                let lines = &mut lines[..UNPACKED_ROWS.min(k - first)];
                weights.unpack(self.machine.isa, part, first, lines);
                for (p, column) in (part * BLOCK / nr..self.panels).zip((0..BLOCK).step_by(nr)) {
                    // SAFETY: each part writes panels of its own.
                    let panel = unsafe { packed.get().add((p * k + first) * nr) };
                    for (row, line) in lines.iter().enumerate() {
                        // SAFETY: a row of this panel.
                        let to = unsafe { std::slice::from_raw_parts_mut(panel.add(row * nr), nr) };
                        to.copy_from_slice(&line[column..column + nr]);
                    }
                }
            }
        });
    }

    /// Runs the task of some rows and columns of a batch.
    fn run_block(&self, arguments: &Arguments<'_>, thread: usize, batch: usize, rows: usize, columns: usize) {
        let (layout, micro) = (&self.layout, &self.micro);
        assert!(thread < self.machine.threads() && arguments.workspace.len() >= self.workspace());
        let left = arguments.inputs[usize::from(layout.swapped)];
        let left = left.map_or(std::ptr::null(), |view| view.as_ptr().cast::<f32>().cast_const());
        let output = arguments.outputs[0].as_ptr().cast::<f32>();
        let workspace = arguments.workspace.as_ptr();
        let Operand { free: row, k: column } = layout.left;
        let (left_offset, right_batch, out_offset) = layout.batch(batch);
        let packed = match &self.right {
            Right::Packed(weights) => weights.panels.as_ptr(),
            // SAFETY: inside the packed part of the workspace.
            _ => unsafe { workspace.cast::<f32>().add(right_batch * self.packed_len()).cast_const() },
        };
        // SAFETY: each thread has its own part of the workspace.
        let (registers, scratch) = unsafe {
            let start = workspace.add(self.packed_bytes() + thread * self.thread_bytes());
            let count = self.registers_bytes() / size_of::<Register>();
            let scratch = start.add(self.registers_bytes()).cast::<f32>();
            (
                std::slice::from_raw_parts_mut(start.cast::<Register>(), count),
                std::slice::from_raw_parts_mut(scratch, gemm::scratch_len(micro)),
            )
        };
        let registers = std::cell::RefCell::new(registers);
        let extra: &[Option<View<'_>>] = arguments.inputs.get(self.extra..).unwrap_or_default();
        // SAFETY: inside the output.
        let target = Target { start: unsafe { output.add(out_offset) }, row: layout.out_row };
        let common = self.epilogue.as_ref().and_then(Epilogue::common);
        let bias = self.bias(common, extra);
        let common = common.filter(|common| common.bias.is_none() || !bias.is_empty());
        let store = |tile: &mut [f32], m: usize, n: usize, (rows, columns): (usize, usize)| {
            let tile = &mut tile[..rows * micro.nr];
            let start = out_offset + m * layout.out_row + n;
            if let Some(common) = common {
                // SAFETY: rows and columns of this task alone; the residual has the output's elements.
                unsafe {
                    let bias = bias.get(n..n + columns).unwrap_or_default();
                    let numbers = Numbers::F32(output.add(start));
                    let mut ending = Ending::new((rows, columns), micro.nr, bias, numbers, layout.out_row);
                    ending.follow(common, extra, start);
                    ending.run(self.machine.isa, tile);
                }
            } else if let Some(epilogue) = &self.epilogue {
                let place = (start, layout.out_row);
                epilogue.apply(extra, tile, micro.nr, (rows, columns), place, &mut registers.borrow_mut());
                // SAFETY: as above.
                unsafe { gemm::store_tile(tile, micro.nr, target, (m, n), (rows, columns)) };
            }
        };
        let residual = common.and_then(|common| extra.get(common.residual?.input).copied().flatten());
        let end = |m: usize, n: usize| {
            let at = out_offset + m * layout.out_row + n;
            let (low, high) = common.map_or(UNBOUNDED, |common| (common.low, common.high));
            End {
                bias: if bias.is_empty() { std::ptr::null() } else { bias[n..].as_ptr() },
                residual: residual
                    .map_or(std::ptr::null(), |residual| residual.as_ptr().cast::<f32>().wrapping_add(at)),
                low,
                high,
            }
        };
        let finish = self.epilogue.is_some().then_some(gemm::Finish {
            store: &store,
            end: common.filter(|common| common.is_plain()).map(|_| &end as &dyn Fn(usize, usize) -> End),
        });
        // SAFETY: offsets and strides stay inside operands and output; tasks have disjoint parts of C.
        unsafe {
            gemm::multiply(
                micro,
                Left::Strided { start: left.add(left_offset), row, column, copies: self.copies() },
                (rows * self.task_rows(), layout.m.min((rows + 1) * self.task_rows())),
                (columns * self.task_panels(), self.panels.min((columns + 1) * self.task_panels())),
                (layout.n, layout.k),
                &|p, depth| packed.add((p * layout.k + depth) * micro.nr),
                None,
                target,
                scratch,
                finish,
            );
        }
    }

    /// The bias of an epilogue, where it has a number for each column of C.
    fn bias<'a>(&self, common: Option<&Common>, extra: &[Option<View<'a>>]) -> &'a [f32] {
        let view = common.and_then(|common| extra.get(common.bias?).copied().flatten());
        // SAFETY: inputs are not written during the step.
        let bias = view.map_or(&[][..], |view| unsafe { view.slice::<f32>() });
        if bias.len() == self.layout.n { bias } else { &[] }
    }
}

/// A pointer that several threads use for disjoint parts.
#[derive(Clone, Copy)]
struct SendPtr(*mut f32);
// SAFETY: see the type's text.
unsafe impl Sync for SendPtr {}

impl SendPtr {
    fn get(&self) -> *mut f32 {
        self.0
    }
}
