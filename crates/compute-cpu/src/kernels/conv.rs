//! Convolutions in f32 over up to three spatial axes.
//!
//! A convolution is a product of the weights `[channels, inputs x taps]` with patches of the input
//! `[inputs x taps, pixels]`, whose result lies in memory as the output wants it. The patches are never
//! stored as a whole: each task packs the panels that it is about to multiply, with zeros where a tap
//! falls outside. Channels that see one input channel only (depthwise), or few, have a loop of their own.
//! Transposed convolutions with the channels last are several others, and have a product of their own elsewhere.

mod blas;
mod cuts;
mod depthwise;
mod depthwise_pixels;
mod finish;
mod patches;
mod phases;
mod pixels;
pub(super) mod tiled;
mod transposed;
pub(super) mod window;
mod winograd;

use super::Machine;
use super::contract::{Layout, TiledStep};
use super::epilogue::Epilogue;
use super::lines::fill_whole_lines;
use super::packed::{PackedWeights, f32_bytes};
use super::tiled::{Finish, IntegerWeights, TiledWeights};
use super::tuning::{self, Offer};
use crate::gemm::{self, Copies, KC, Left, Micro, Target};
use crate::map::Register;
use crate::matrix;
use crate::pool::own_bytes;
use crate::{Blas, Isa, Matrix};
use blas::{BlasConvStep, TapRows};
use depthwise::DepthwiseStep;
use depthwise_pixels::{DepthwisePixelsStep, Integers, TapWeights};
use half::bf16;
use halimede_compute::layout::{Band, Layout::Blocked, Layouts, Stance, Stances};
use halimede_compute::packed::Packer;
use halimede_compute::tuning::{Operator, Tunable};
use halimede_compute::{Arguments, Kernel, Prepared, Step, TensorDesc};
use halimede_graph::ops::{Conv, Factors, channels_first, whole_weights};
use halimede_graph::{Dim, Graph, Node, OpError, ValueId};
use halimede_tensor::{DType, Shape, Tensor, View};
use patches::pack_patches;
use phases::{Parts, Phases};
use pixels::{Lying, Panels, PixelsStep, Target as Pixels};
use smallvec::{SmallVec, smallvec};
use std::cell::RefCell;
use std::sync::Arc;
use tiled::{Channels, TiledConvStep};
use transposed::TransposedStep;
pub(super) use window::Window;
pub(super) use winograd::{BLOCK_BYTES, Form};
use winograd::{Ends, Transformed};

/// Panels of patches that one task packs: at [`KC`] rows they fill 256 KiB.
const TASK_PANELS: usize = 8;
/// Axes of images with the channels last: a border is of those, not of signals over one axis.
const IMAGES: usize = 4;
/// Pixels around an image, at most, that are worth keeping there: of a kernel 7 wide.
const BORDER_MOST: usize = 3;
/// Output channels that one task takes when there are fewer tasks than threads; a multiple of every
/// micro-kernel's rows.
const TASK_ROWS: usize = 48;

pub(super) struct ConvKernel {
    op: Conv,
    machine: Machine,
    micro: Micro,
    name: String,
    weights: Option<Packed>,
}

/// Constant weights in the order of the loop that reads them.
#[derive(Clone)]
enum Packed {
    Tiles(Arc<Weights>),
    Panels(Arc<Panels>),
    Rows(Arc<TapRows>),
    Winograd(Transformed),
    Taps(Arc<TapWeights>),
    TapPhases(Arc<Phases<TapWeights>>),
    Phases(Arc<Phases<Panels>>),
    Tiled(Arc<TiledWeights>),
    TiledPhases(Arc<Phases<TiledWeights>>),
    TiledGroups(Arc<TiledGroups>),
    Integers(IntegerWeights),
}

/// The sizes `[batch, height, width]` of the result of a convolution with the channels last, where they are
/// known when it is compiled; a batch that is not is taken for 1.
fn output_shape(graph: &Graph, node: &Node) -> Option<[usize; 3]> {
    let shape = graph.fact(*node.outputs.first()?).shape.as_ref()?;
    let [batch, height, width, _] = shape.as_slice() else { return None };
    Some([batch.size().unwrap_or(1), height.size()?, width.size()?])
}

/// Whether a convolution of f32 runs by Winograd's algorithm, with fewer multiplications than its definition has.
pub(crate) fn saves_multiplications(op: &Conv, graph: &Graph, node: &Node, machine: &Machine) -> bool {
    let weights = node.inputs.get(1).and_then(|&weights| graph.constant(weights?));
    let form = |weights: &Tensor| Form::choose(machine.winograd, op, weights.shape(), output_shape(graph, node));
    weights.filter(|weights| form(weights).is_some()).is_some_and(winograd::may_transform)
}

/// Whether a convolution by constant weights of this shape is one of registers of channels, each of which sees few.
pub(crate) fn takes_taps(op: &Conv, weights: &[usize], isa: Isa) -> bool {
    has_phases(op, weights) && TapWeights::fit(op, weights, isa)
}

/// Whether a convolution is none that is transposed, or one that falls into plain ones.
fn has_phases(op: &Conv, weights: &[usize]) -> bool {
    op.transposed.is_none() || phases::fit(op, weights)
}

/// Whether a convolution by constant weights of this shape, with the channels last, is a product on the matrix unit.
pub(crate) fn takes_tiles(op: &Conv, weights: &[usize], isa: Isa) -> bool {
    let is_one = op.groups == 1 && has_phases(op, weights);
    is_one || !takes_taps(op, weights, isa) && tiled::takes_groups(op, weights)
}

/// What multiplies whole matrices for a convolution.
fn by_blas(op: &Conv, machine: &Machine) -> Option<Blas> {
    machine.blas_for(op.multiply).filter(|_| op.transposed.is_none())
}

/// Input channels of a group, by the weights.
fn channels(graph: &Graph, weights: ValueId) -> Option<usize> {
    graph.fact(weights).shape.as_ref()?.get(1)?.size()
}

/// The product of a convolution that sees one pixel for each of its own: every pixel of every image is a row.
fn layout_of(window: &Window) -> Layout {
    Layout::plain(window.batch * window.pixels(), window.rows, window.inputs)
}

/// What can be chosen about a convolution with constant weights.
fn tunable(op: &Conv, inputs: &[Option<TensorDesc>], output: &TensorDesc, machine: &Machine) -> Option<Tunable> {
    // Its blocks are none of the library's business.
    by_blas(op, machine).is_none().then_some(())?;
    let offer = Offer::of_conv(op, inputs, output, machine)?;
    let operator = Operator::conv(op, inputs, output, true, machine.pool.threads())?;
    Some(offer.tunable(operator, &machine.choices))
}

/// The same where sizes are known when it is compiled; a batch that is not is taken for 1. Nothing where nothing
/// was ever chosen.
fn planned(op: &Conv, graph: &Graph, node: &Node, machine: &Machine) -> Option<Tunable> {
    if machine.choices.is_empty() {
        return None;
    }
    let desc = |value: ValueId| {
        let fact = graph.fact(value);
        let dims = fact.shape.as_ref()?.iter().enumerate();
        let size = |(axis, dim): (usize, &Dim)| dim.size().or((axis == 0).then_some(1));
        Some(TensorDesc { dtype: fact.dtype?, shape: dims.map(size).collect::<Option<Shape>>()? })
    };
    let inputs: Vec<Option<TensorDesc>> = node.inputs.iter().map(|input| input.and_then(desc)).collect();
    tunable(op, &inputs, &desc(*node.outputs.first()?)?, machine)
}

/// Weights of the matrix unit, those of each group by themselves.
struct TiledGroups {
    shape: SmallVec<[usize; 6]>,
    groups: Vec<Arc<TiledWeights>>,
}

/// Constant weights packed in tiles, group after group.
struct Weights {
    shape: SmallVec<[usize; 6]>,
    tiles: PackedWeights,
}

impl ConvKernel {
    pub fn new(op: &Conv, graph: &Graph, node: &Node, machine: Machine, packer: &Packer) -> ConvKernel {
        let micro = Micro::new(machine.isa);
        // Depthwise ones are no products of matrices, and narrow ones hardly.
        let sees_one = |weights| op.groups > 1 && channels(graph, weights) == Some(1);
        let has_taps = |weights| graph.constant(weights).is_some_and(|w| takes_taps(op, w.shape(), machine.isa));
        let weights = node.inputs.get(1).copied().flatten();
        let is_narrow = weights.is_some_and(|weights| sees_one(weights) || has_taps(weights));
        let machine = if is_narrow { Machine { blas: None, ..machine } } else { machine };
        let weights = Packed::new(op, graph, node, (&machine, &micro), packer);
        let packed = if weights.is_some() { ", packed weights" } else { "" };
        let kind = match (&op.transposed, &weights) {
            (Some(_), Some(Packed::Phases(_) | Packed::TiledPhases(_) | Packed::TapPhases(_))) => {
                "transposed conv of pixels"
            }
            (Some(_), _) => "transposed conv",
            (
                None,
                Some(
                    Packed::Panels(_)
                    | Packed::Rows(_)
                    | Packed::Tiled(_)
                    | Packed::TiledGroups(_)
                    | Packed::Integers(_),
                ),
            ) => "conv of pixels",
            (None, Some(Packed::Taps(taps))) if taps.shape[1] == 1 => "depthwise conv of pixels",
            (None, Some(Packed::Taps(_))) => "grouped conv of pixels",
            _ => "conv",
        };
        let name = match (&weights, machine.unit_name(op.multiply)) {
            (
                Some(Packed::Tiled(_) | Packed::TiledPhases(_) | Packed::TiledGroups(_) | Packed::Integers(_)),
                Some(unit),
            ) => {
                format!("{kind} {unit}{packed}")
            }
            (Some(Packed::Winograd(weights)), unit) => {
                let by = unit.filter(|_| weights.form() == Form::F2OfBf16).unwrap_or_else(|| micro.name().to_owned());
                format!("conv by Winograd's {} {by}{packed}", weights.form().name())
            }
            _ => format!("{kind} {}{packed}", by_blas(op, &machine).map_or(micro.name(), Blas::name)),
        };
        ConvKernel { op: op.clone(), machine, micro, name, weights }
    }
}

impl Packed {
    fn new(
        op: &Conv,
        graph: &Graph,
        node: &Node,
        (machine, micro): (&Machine, &Micro),
        packer: &Packer,
    ) -> Option<Packed> {
        let tensor = graph.constant((*node.inputs.get(1)?)?)?;
        let chosen = planned(op, graph, node, machine).and_then(|tunable| tuning::form(&tunable.chosen?, op.multiply));
        // Where Winograd's algorithm pays was measured beside the unit's own kernels, and on some units.
        let by_blas = by_blas(op, machine).is_some();
        let is_measured = match op.multiply {
            None => !by_blas,
            Some(_) => machine.matrix.is_some_and(Matrix::gains_by_winograd),
        };
        let policy = if is_measured { machine.winograd } else { machine.winograd.unmeasured() };
        let usual = || Form::choose(policy, op, tensor.shape(), output_shape(graph, node));
        let form = chosen.unwrap_or_else(usual).filter(|_| winograd::may_transform(tensor));
        if let Some(form) = form {
            return Transformed::pack(tensor, form, (machine, micro), packer).map(Packed::Winograd);
        }
        let groups = op.groups.max(1);
        match *tensor.shape() {
            _ if op.multiply == Some(Factors::Integers)
                && op.transposed.is_none()
                && takes_taps(op, tensor.shape(), machine.isa) =>
            {
                TapWeights::pack_integers(tensor, packer).map(Arc::new).map(Packed::Taps)
            }
            [_, _, ..] if op.multiply.is_some() && !op.channels_last => None,
            [_, _, ..]
                if groups > 1
                    && op.multiply.is_some_and(|factors| {
                        factors != Factors::Bf16 || !tiled::takes_groups(op, tensor.shape())
                    }) =>
            {
                None
            }
            [rows, channels, ref size @ ..] if op.multiply.is_some() => {
                let taps: Vec<usize> = (0..size.iter().product()).collect();
                let row = size.last().copied().unwrap_or(1);
                let apart = op.dilations.last().copied().unwrap_or(1);
                let lying = Lying::plain((rows, channels), groups, &taps, (row, apart));
                match op.multiply? {
                    Factors::Bf16 => {
                        machine.matrix?;
                        let pack = |lying: &Lying<'_>, group| {
                            tiled::pack::<bf16, f32>((machine.isa, packer), tensor, lying, group)
                        };
                        if op.transposed.is_some() {
                            let phases = Phases::pack(op, tensor, |lying| pack(lying, 0));
                            return phases.map(Arc::new).map(Packed::TiledPhases);
                        }
                        if groups > 1 {
                            let groups = (0..groups).map(|group| pack(&lying, group).map(Arc::new));
                            let (shape, groups) = (tensor.shape().into(), groups.collect::<Option<_>>()?);
                            return Some(Packed::TiledGroups(Arc::new(TiledGroups { shape, groups })));
                        }
                        pack(&lying, 0).map(Arc::new).map(Packed::Tiled)
                    }
                    // None are made: where blocks of f16 gain, those of bf16 would, or f32 by the system's library.
                    Factors::F16 => None,
                    Factors::Integers if op.transposed.is_some() => None,
                    Factors::Integers => {
                        let whole = whole_weights(tensor, 0).ok()?;
                        let weights = tiled::pack::<i8, i8>((machine.isa, packer), &whole, &lying, 0)?;
                        Some(Packed::Integers(IntegerWeights::new(weights)))
                    }
                }
            }
            _ if op.transposed.is_some() && takes_taps(op, tensor.shape(), machine.isa) => {
                let phases = Phases::pack(op, tensor, |lying| TapWeights::pack_from(tensor, lying, packer));
                phases.map(Arc::new).map(Packed::TapPhases)
            }
            [_, _, ..] if op.channels_last && op.transposed.is_some() => {
                let phases = Phases::pack(op, tensor, |lying| Panels::pack_from(tensor, lying, micro, packer));
                phases.map(Arc::new).map(Packed::Phases)
            }
            [channels, ..] if !channels.is_multiple_of(groups) => None,
            _ if takes_taps(op, tensor.shape(), machine.isa) => {
                TapWeights::pack(tensor, packer).map(Arc::new).map(Packed::Taps)
            }
            [_, _, ..] if op.channels_last && by_blas => TapRows::pack(tensor, packer).map(Arc::new).map(Packed::Rows),
            [_, _, ..] if op.channels_last => {
                Panels::pack(tensor, groups, micro, packer).map(Arc::new).map(Packed::Panels)
            }
            // The library reads them as they lie.
            _ if by_blas => None,
            _ => Weights::pack(op, tensor, micro, packer).map(Arc::new).map(Packed::Tiles),
        }
    }

    fn shape(&self) -> &[usize] {
        match self {
            Packed::Tiles(weights) => &weights.shape,
            Packed::Panels(panels) => &panels.shape,
            Packed::Rows(rows) => &rows.shape,
            Packed::Winograd(weights) => weights.shape(),
            Packed::Taps(taps) => &taps.shape,
            Packed::Phases(phases) => &phases.shape,
            Packed::TapPhases(phases) => &phases.shape,
            Packed::Tiled(weights) => &weights.shape,
            Packed::TiledPhases(phases) => &phases.shape,
            Packed::TiledGroups(weights) => &weights.shape,
            Packed::Integers(weights) => &weights.tiled.shape,
        }
    }

    fn bytes(&self) -> usize {
        match self {
            Packed::Tiles(weights) => weights.tiles.bytes(),
            Packed::Panels(panels) => panels.bytes(),
            Packed::Rows(rows) => rows.elements.bytes(),
            Packed::Winograd(weights) => weights.bytes(),
            Packed::Taps(taps) => taps.elements.bytes(),
            Packed::Phases(phases) => phases.weights().map(Panels::bytes).sum(),
            Packed::TapPhases(phases) => phases.weights().map(|taps| taps.elements.bytes()).sum(),
            Packed::Tiled(weights) => weights.bytes(),
            Packed::TiledPhases(phases) => phases.weights().map(TiledWeights::bytes).sum(),
            Packed::TiledGroups(weights) => weights.groups.iter().map(|weights| weights.bytes()).sum(),
            Packed::Integers(weights) => weights.tiled.bytes(),
        }
    }
}

impl Weights {
    fn pack(op: &Conv, tensor: &Tensor, micro: &Micro, packer: &Packer) -> Option<Weights> {
        let (elements, shape) = (f32_bytes(tensor)?, tensor.shape());
        let (&channels, taps) = (shape.first()?, shape.get(1..)?.iter().product::<usize>());
        let rows = channels / op.groups.max(1);
        // Depthwise and transposed convolutions read weights one by one.
        if op.transposed.is_some() || rows == 0 || shape.get(1) == Some(&1) && op.groups > 1 {
            return None;
        }
        let len = gemm::rows_len(micro, rows, taps);
        let tiles = PackedWeights::new(packer, "tiles", len * op.groups, |tiles| {
            for (group, tiles) in tiles.chunks_exact_mut(len.max(1)).enumerate() {
                // SAFETY: the rows of this group, which the tensor's bytes hold.
                unsafe {
                    let start = elements.as_ptr().cast::<f32>().add(group * rows * taps);
                    gemm::pack_rows(micro, start, rows, taps, tiles);
                }
            }
        })?;
        Some(Weights { shape: shape.into(), tiles })
    }
}

impl Kernel for ConvKernel {
    fn name(&self) -> &str {
        &self.name
    }

    fn prepare(&self, inputs: &[Option<TensorDesc>], outputs: &[TensorDesc]) -> Result<Prepared, OpError> {
        self.prepare_laid_out(inputs, outputs, &Layouts::default())
    }

    fn stances(&self, inputs: &[Option<TensorDesc>], outputs: &[TensorDesc]) -> Option<Stances> {
        let (x, w, output) = (inputs.first()?.as_ref()?, inputs.get(1)?.as_ref()?, outputs.first()?);
        let weights = self.weights.as_ref().filter(|weights| *weights.shape() == w.shape[..])?;
        if let Packed::Taps(taps) = weights {
            self.machine.blocks_values().then_some(())?;
            return self.depthwise(taps, x, w, inputs, output, None).ok()?.stances();
        }
        self.machine.blocked_stance(self.op.multiply?)?;
        let window = self.window_of_pixels(x, w, output, None).ok()?;
        let (map, isa, layout) = (self.op.epilogue.as_ref(), self.machine.isa, layout_of(&window));
        let stances = match weights {
            Packed::Tiled(_) | Packed::TiledPhases(_) => {
                let finish = Finish::<bf16>::new(map, inputs, Some(2), 3, output, isa).ok()?;
                layout.stances(x.dtype, x.dtype == DType::Bf16, &finish, output, &self.machine)?
            }
            Packed::Integers(weights) => {
                layout.integer_stances(x.dtype, weights, map, inputs, output, &self.machine)?
            }
            _ => return None,
        };
        // The data are copied line by line either way, and what is multiplied is the copy, where they are not what is multiplied.
        let mut stances = if window.is_pointwise() { stances } else { stances.indifferent() };
        let are_whole = [(window.inputs, x), (window.rows, output)];
        let are_whole = are_whole.map(|(channels, desc)| fill_whole_lines(channels * desc.dtype.size()));
        if !window.is_pointwise() || matches!(weights, Packed::TiledPhases(_)) {
            // What is copied, and what has other pixels between its own, is so line by line.
            if !are_whole[0] {
                stances.inputs[0] = Stance::RowMajor;
            }
            if !are_whole[1] {
                stances.output = Stance::RowMajor;
            }
        }
        // What is around integers is their zero point, which who writes them does not know.
        let border = match weights {
            Packed::Tiled(_) => tiled::is_seen_in_place(&window).then(|| window.border()),
            Packed::TiledPhases(phases) => Some(phases.border(&window)),
            _ => return Some(stances),
        };
        let reads_tiles = self.machine.matrix.is_some_and(|matrix| !matrix.takes_lines());
        stances.takes_borders = reads_tiles && are_whole == [true; 2];
        // Narrower images are copied as fast as their rows are written apart, where that is not every second pixel.
        let is_worth_it =
            stances.takes_borders && (window.out[2] >= matrix::TILE || !window.is_dense()) && x.shape.len() == IMAGES;
        let border = border.filter(|&border| border == 0 || is_worth_it && border <= BORDER_MOST);
        if let (Some(border), Stance::Either) = (border, stances.inputs[0]) {
            stances.inputs[0] = Stance::Bordered(border as u8);
        }
        Some(stances)
    }

    fn prepare_laid_out(
        &self,
        inputs: &[Option<TensorDesc>],
        outputs: &[TensorDesc],
        layouts: &Layouts,
    ) -> Result<Prepared, OpError> {
        let (Some(Some(x)), Some(Some(w))) = (inputs.first(), inputs.get(1)) else {
            return Err(OpError::invalid("a convolution needs data and weights"));
        };
        let output = &outputs[0];
        let machine = self.machine.blocked(|| self.tunable(inputs, outputs));
        let weights = self.weights.as_ref().filter(|weights| *weights.shape() == w.shape[..]);
        if self.op.multiply.is_some() && !matches!(weights, Some(Packed::Taps(_))) {
            return self.prepare_tiled(x, w, inputs, output, layouts, machine);
        }
        let has_bias = inputs.get(2).is_some_and(Option::is_some);
        let extra = inputs.get(3..).unwrap_or_default();
        let (map, isa) = (self.op.epilogue.as_ref(), self.machine.isa);
        let are_floats = [x, output].iter().all(|desc| matches!(desc.dtype, DType::F32 | DType::Bf16));
        if let Some(Packed::Taps(taps)) = weights
            && (are_floats || self.op.multiply.is_some())
        {
            let step = self.depthwise(taps, x, w, inputs, output, layouts.band)?;
            let step = if layouts.output == Blocked { step.in_blocks() } else { step };
            let workspace = step.workspace();
            return Ok(Prepared { step: Box::new(step), workspace });
        }
        if !layouts.are_row_major() {
            return Err(OpError::unsupported("a convolution of f32 in blocks"));
        }
        if let Some(Packed::TapPhases(phases)) = weights
            && are_floats
        {
            let window = self.window_of_pixels(x, w, output, layouts.band)?;
            return phases.prepare(&window, |window, parts| {
                let steps = parts.into_iter().map(|(target, taps)| {
                    let step = self.taps_of(window.clone(), &taps, (x.dtype, inputs), output, None)?.of_phase(target);
                    let workspace = step.workspace();
                    Ok(Prepared { step: Box::new(step), workspace })
                });
                Ok(phases::in_turn(steps.collect::<Result<_, OpError>>()?))
            });
        }
        if [x, w, output].iter().any(|desc| desc.dtype != DType::F32) {
            return Err(OpError::unsupported(format!("a convolution of {}", x.dtype)));
        }
        if self.op.channels_last {
            let epilogue = || Epilogue::new(map, extra, output, isa);
            return self.prepare_pixels(x, w, output, weights, has_bias, epilogue, (machine, layouts.band));
        }
        if layouts.band.is_some() {
            return Err(OpError::unsupported("rows of images whose channels come first"));
        }
        let epilogue = Epilogue::new(map, extra, output, isa)?;
        let window = Window::new(&self.op, &x.shape, &w.shape, &output.shape)?;
        if self.op.transposed.is_some() {
            let step = TransposedStep::new(window, has_bias, epilogue, self.machine.clone(), self.micro);
            let workspace = step.workspace();
            return Ok(Prepared { step: Box::new(step), workspace });
        }
        if window.inputs == 1 && window.groups > 1 {
            let step = DepthwiseStep::new(window, has_bias, epilogue, self.machine.clone());
            let workspace = step.workspace();
            return Ok(Prepared { step: Box::new(step), workspace });
        }
        let weights = match weights {
            Some(Packed::Tiles(tiles)) => Some(tiles.clone()),
            _ => None,
        };
        if let Some(blas) = self.machine.blas
            && BlasConvStep::takes(&window)
        {
            return Ok(BlasConvStep::new(window, None, has_bias, epilogue, machine, blas).prepared());
        }
        let step = ConvStep::new(window, weights, has_bias, epilogue, self.machine.clone(), self.micro);
        let workspace = step.thread_bytes() * self.machine.pool.threads();
        Ok(Prepared { step: Box::new(step), workspace })
    }

    fn tunable(&self, inputs: &[Option<TensorDesc>], outputs: &[TensorDesc]) -> Option<Tunable> {
        self.weights.as_ref()?;
        tunable(&self.op, inputs, outputs.first()?, &self.machine)
    }

    fn in_place(&self) -> SmallVec<[(usize, usize); 2]> {
        match &self.weights {
            Some(Packed::Tiled(weights)) => weights.in_place(),
            Some(Packed::Integers(weights)) => weights.tiled.in_place(),
            // As there: what is added to a register is read just before that is written.
            Some(Packed::Panels(panels)) if panels.is_whole(self.op.groups, &self.micro) => {
                (3..8).map(|input| (input, 0)).collect()
            }
            _ => SmallVec::new(),
        }
    }

    fn consumed(&self) -> SmallVec<[usize; 2]> {
        if self.weights.is_some() { smallvec::smallvec![1] } else { SmallVec::new() }
    }

    fn packed_bytes(&self) -> usize {
        self.weights.as_ref().map_or(0, Packed::bytes)
    }
}

impl ConvKernel {
    /// The geometry of a convolution with the channels last, of a band of an image.
    fn window_of_pixels(
        &self,
        x: &TensorDesc,
        w: &TensorDesc,
        output: &TensorDesc,
        band: Option<Band>,
    ) -> Result<Window, OpError> {
        let first = |shape: &[usize]| channels_first::<usize, Shape>(shape);
        let window = Window::new(&self.op, &first(&x.shape), &w.shape, &first(&output.shape))?.of_band(band);
        if window.kernel[0] != 1 || window.x[0] != 1 {
            return Err(OpError::unsupported("a convolution over three axes with the channels last"));
        }
        Ok(window)
    }

    fn depthwise(
        &self,
        taps: &Arc<TapWeights>,
        x: &TensorDesc,
        w: &TensorDesc,
        inputs: &[Option<TensorDesc>],
        output: &TensorDesc,
        band: Option<Band>,
    ) -> Result<DepthwisePixelsStep, OpError> {
        self.taps_of(self.window_of_pixels(x, w, output, band)?, taps, (x.dtype, inputs), output, band)
    }

    /// The same of a window on data of a datatype.
    fn taps_of(
        &self,
        window: Window,
        taps: &Arc<TapWeights>,
        (data, inputs): (DType, &[Option<TensorDesc>]),
        output: &TensorDesc,
        band: Option<Band>,
    ) -> Result<DepthwisePixelsStep, OpError> {
        let (types, machine) = ((data, output.dtype), self.machine.clone());
        if self.op.multiply.is_some() {
            let integers = Integers::new(self.op.epilogue.as_ref(), inputs, output, self.machine.isa)?;
            return Ok(DepthwisePixelsStep::of_integers((window, band), taps.clone(), integers, types, machine));
        }
        let (map, extra) = (self.op.epilogue.as_ref(), inputs.get(3..).unwrap_or_default());
        let epilogue = Epilogue::narrowed(map, extra, output, self.machine.isa)?;
        let has_bias = inputs.get(2).is_some_and(Option::is_some);
        Ok(DepthwisePixelsStep::new((window, band), taps.clone(), has_bias, epilogue, types, machine))
    }

    /// Products of bf16 or integers on the matrix unit.
    fn prepare_tiled(
        &self,
        x: &TensorDesc,
        w: &TensorDesc,
        inputs: &[Option<TensorDesc>],
        output: &TensorDesc,
        layouts: &Layouts,
        machine: Machine,
    ) -> Result<Prepared, OpError> {
        let map = self.op.epilogue.as_ref();
        let unsupported = || OpError::unsupported(format!("this convolution of {} in fewer bits", x.dtype));
        let packed = self.weights.as_ref().filter(|packed| *packed.shape() == w.shape[..]).ok_or_else(unsupported)?;
        let window = self.window_of_pixels(x, w, output, layouts.band)?;
        // Rows of the product of a whole image are what values lie by.
        let rows = |layout: &Layout| match layouts.band {
            Some(Band { heights: [data, result], .. }) => [data * window.x[2], result * window.out[2]],
            None => [layout.m; 2],
        };
        let layout = || {
            let layout = layout_of(&window);
            let rows = rows(&layout);
            layout.laid_out_of(rows, layouts, x.dtype.size(), output.dtype.size())
        };
        if let Packed::Integers(weights) = packed {
            if window.is_pointwise() {
                return layout().prepare_integers(x.dtype, weights, map, inputs, output, &machine);
            }
            let parts = smallvec![(Pixels::whole(&window), weights.tiled.clone())];
            let (unit, isa) = (machine.integers, machine.isa);
            let channels = Channels::of_group(&window, 0);
            let window = (window, channels);
            return Ok(match (x.dtype, unit.signed()) {
                (DType::I8, Some(unit)) => {
                    let finish = Finish::of_integers(map, inputs, weights, output, isa)?;
                    TiledConvStep::<i8, i8>::new(window, parts, finish, machine, unit, layouts).prepared()
                }
                (DType::I8, None) => {
                    let finish = Finish::of_integers(map, inputs, weights, output, isa)?;
                    TiledConvStep::<u8, i8>::new(window, parts, finish, machine, unit, layouts).prepared()
                }
                _ => {
                    let finish = Finish::of_integers(map, inputs, weights, output, isa)?;
                    TiledConvStep::<u8, u8>::new(window, parts, finish, machine, unit, layouts).prepared()
                }
            });
        }
        let finish = || Finish::new(map, inputs, Some(2), 3, output, machine.isa);
        if let Packed::Winograd(weights) = packed {
            if layouts.band.is_some() {
                return Err(OpError::unsupported("Winograd's algorithm on rows of an image"));
            }
            return weights.prepare(window, x.dtype, Ends::Blocks(finish()?), machine, self.micro);
        }
        let unit = machine.matrix.ok_or_else(unsupported)?;
        let prepare_group = |window: (Window, Channels), parts: Parts<TiledWeights>| {
            let (finish, machine) = (finish()?, machine.clone());
            Ok(match x.dtype {
                DType::F32 => TiledConvStep::<bf16, f32>::new(window, parts, finish, machine, unit, layouts).prepared(),
                DType::Bf16 => {
                    TiledConvStep::<bf16, bf16>::new(window, parts, finish, machine, unit, layouts).prepared()
                }
                _ => return Err(unsupported()),
            })
        };
        let prepare = |window: Window, parts| {
            let channels = Channels::of_group(&window, 0);
            prepare_group((window, channels), parts)
        };
        match packed {
            Packed::TiledGroups(weights) => {
                let steps = weights.groups.iter().enumerate().map(|(group, weights)| {
                    let (channels, whole) = (Channels::of_group(&window, group), Pixels::whole(&window));
                    let window = Window { groups: 1, ..window.clone() };
                    prepare_group((window, channels), smallvec![(whole, weights.clone())])
                });
                Ok(phases::in_turn(steps.collect::<Result<_, OpError>>()?))
            }
            // Pixels of images that have a border are no rows of one matrix.
            Packed::Tiled(weights) if window.is_pointwise() && !layouts.have_borders() => {
                let (weights, finish, layout) = (Some(weights.clone()), finish()?, layout());
                Ok(match x.dtype {
                    DType::F32 => TiledStep::<bf16, f32, f32>::new(layout, weights, finish, machine, unit).prepared(),
                    DType::Bf16 => TiledStep::<bf16, bf16, f32>::new(layout, weights, finish, machine, unit).prepared(),
                    _ => return Err(unsupported()),
                })
            }
            Packed::Tiled(weights) => {
                let whole = Pixels::whole(&window);
                prepare(window, smallvec![(whole, weights.clone())])
            }
            Packed::TiledPhases(phases) => phases.prepare(&window, prepare),
            _ => Err(OpError::unsupported("weights that are packed for f32")),
        }
    }

    fn prepare_pixels(
        &self,
        x: &TensorDesc,
        w: &TensorDesc,
        output: &TensorDesc,
        weights: Option<&Packed>,
        has_bias: bool,
        epilogue: impl Fn() -> Result<Option<Epilogue>, OpError>,
        (machine, band): (Machine, Option<Band>),
    ) -> Result<Prepared, OpError> {
        let window = self.window_of_pixels(x, w, output, band)?;
        match weights {
            Some(Packed::Panels(panels)) => {
                let epilogue = epilogue()?;
                let step = PixelsStep::new(window, None, panels.clone(), has_bias, epilogue, machine, self.micro);
                let workspace = step.workspace();
                Ok(Prepared { step: Box::new(step), workspace })
            }
            // The library may cut what it rounds elsewhere.
            Some(Packed::Rows(_)) if band.is_some() => {
                Err(OpError::unsupported("the system's library on rows of an image"))
            }
            Some(Packed::Rows(rows)) => {
                let Some(blas) = machine.blas.filter(|_| BlasConvStep::takes(&window)) else {
                    return Err(OpError::unsupported("a convolution as large as this"));
                };
                Ok(BlasConvStep::new(window, Some(rows.clone()), has_bias, epilogue()?, machine, blas).prepared())
            }
            // Its tiles would begin elsewhere, and so round otherwise.
            Some(Packed::Winograd(_)) if band.is_some() => {
                Err(OpError::unsupported("Winograd's algorithm on rows of an image"))
            }
            Some(Packed::Winograd(weights)) => {
                let ends = Ends::Floats { has_bias, epilogue: epilogue()? };
                weights.prepare(window, x.dtype, ends, machine, self.micro)
            }
            Some(Packed::Phases(phases)) => phases.prepare(&window, |window, parts| {
                let steps = parts.into_iter().map(|(target, panels)| {
                    let (window, target, machine) = (window.clone(), Some(target), machine.clone());
                    let step = PixelsStep::new(window, target, panels, has_bias, epilogue()?, machine, self.micro);
                    let workspace = step.workspace();
                    Ok(Prepared { step: Box::new(step), workspace })
                });
                Ok(phases::in_turn(steps.collect::<Result<_, OpError>>()?))
            }),
            Some(
                Packed::Tiles(_)
                | Packed::Taps(_)
                | Packed::TapPhases(_)
                | Packed::Tiled(_)
                | Packed::TiledPhases(_)
                | Packed::TiledGroups(_)
                | Packed::Integers(_),
            )
            | None => Err(OpError::unsupported("a convolution with the channels last and weights that vary")),
        }
    }
}

struct ConvStep {
    window: Window,
    weights: Option<Arc<Weights>>,
    has_bias: bool,
    epilogue: Option<Epilogue>,
    machine: Machine,
    micro: Micro,
    panels: usize,
    row_tasks: usize,
}

impl ConvStep {
    fn new(
        window: Window,
        weights: Option<Arc<Weights>>,
        has_bias: bool,
        epilogue: Option<Epilogue>,
        machine: Machine,
        micro: Micro,
    ) -> ConvStep {
        let panels = window.pixels().div_ceil(micro.nr);
        let tasks = window.batch * window.groups * panels.div_ceil(TASK_PANELS);
        let row_tasks = if tasks < machine.pool.threads() { window.rows.div_ceil(TASK_ROWS) } else { 1 };
        ConvStep { window, weights, has_bias, epilogue, machine, micro, panels, row_tasks }
    }

    fn registers_bytes(&self) -> usize {
        self.epilogue.as_ref().map_or(0, |epilogue| epilogue.registers() * size_of::<Register>())
    }

    /// Per thread: registers of the epilogue, packed patches, scratch of the driver.
    fn thread_bytes(&self) -> usize {
        let floats = self.patches_len() + gemm::scratch_len(&self.micro);
        own_bytes(self.registers_bytes() + floats * size_of::<f32>())
    }

    fn patches_len(&self) -> usize {
        TASK_PANELS.min(self.panels) * KC.min(self.window.depth()) * self.micro.nr
    }
}

impl Step for ConvStep {
    fn run(&self, arguments: &Arguments<'_>) {
        let window = &self.window;
        let panel_tasks = self.panels.div_ceil(TASK_PANELS);
        let tasks = window.batch * window.groups * panel_tasks * self.row_tasks;
        let threads = self.machine.pool.threads().min(tasks);
        assert!(arguments.workspace.len() >= threads * self.thread_bytes());
        self.machine.pool.run_tasks(threads, tasks, &|thread, task| {
            let (rest, rows) = (task / self.row_tasks, task % self.row_tasks);
            let (rest, columns) = (rest / panel_tasks, rest % panel_tasks);
            let (image, group) = (rest / window.groups, rest % window.groups);
            self.run_task(arguments, thread, image, group, rows, columns);
        });
    }
}

impl ConvStep {
    fn run_task(
        &self,
        arguments: &Arguments<'_>,
        thread: usize,
        image: usize,
        group: usize,
        rows: usize,
        columns: usize,
    ) {
        let (window, micro) = (&self.window, &self.micro);
        let (pixels, depth) = (window.pixels(), window.depth());
        let view = |index: usize| arguments.inputs.get(index).copied().flatten().unwrap_or(View::empty());
        // SAFETY: inputs are not written during the step; the thread's part of the workspace is its own.
        let (x, bias, registers, patches, scratch) = unsafe {
            let start = arguments.workspace.as_ptr().add(thread * self.thread_bytes());
            let floats = start.add(self.registers_bytes()).cast::<f32>();
            let count = self.registers_bytes() / size_of::<Register>();
            (
                view(0).slice::<f32>(),
                if self.has_bias { view(2).slice::<f32>() } else { &[] },
                std::slice::from_raw_parts_mut(start.cast::<Register>(), count),
                std::slice::from_raw_parts_mut(floats, self.patches_len()),
                std::slice::from_raw_parts_mut(floats.add(self.patches_len()), gemm::scratch_len(micro)),
            )
        };
        let image_x = &x[image * window.image_len()..][group * window.inputs * window.plane_len()..];
        let left = match &self.weights {
            Some(weights) => {
                let tiles = gemm::rows_len(micro, window.rows, depth);
                Left::Packed(weights.tiles[group * tiles..].as_ptr())
            }
            None => {
                // SAFETY: the rows of this group in the weights.
                let start = unsafe { view(1).as_ptr().cast::<f32>().add(group * window.rows * depth) };
                Left::Strided { start, row: depth, column: 1, copies: Copies::WherePays }
            }
        };
        let first_channel = group * window.rows;
        let out_offset = (image * window.groups * window.rows + first_channel) * pixels;
        let (p0, p1) = (columns * TASK_PANELS, self.panels.min((columns + 1) * TASK_PANELS));
        let per_task = if self.row_tasks == 1 { window.rows } else { TASK_ROWS };
        let (m0, m1) = (rows * per_task, window.rows.min((rows + 1) * per_task));
        let registers = RefCell::new(registers);
        let extra = arguments.inputs.get(3..).unwrap_or_default();
        // SAFETY: inside the output.
        let target = unsafe { arguments.outputs[0].as_ptr().cast::<f32>().add(out_offset) };
        let target = Target { start: target, row: pixels };
        let store = |tile: &mut [f32], m: usize, n: usize, (rows, columns): (usize, usize)| {
            if !bias.is_empty() {
                for (row, line) in tile.chunks_exact_mut(micro.nr).take(rows).enumerate() {
                    let bias = bias[first_channel + m + row];
                    line.iter_mut().for_each(|element| *element += bias);
                }
            }
            if let Some(epilogue) = &self.epilogue {
                let place = (out_offset + m * pixels + n, pixels);
                epilogue.apply(extra, tile, micro.nr, (rows, columns), place, &mut registers.borrow_mut());
            }
            // SAFETY: rows and columns of this task alone.
            unsafe { gemm::store_tile(tile, micro.nr, target, (m, n), (rows, columns)) };
        };
        let ends = self.has_bias || self.epilogue.is_some();
        let finish = ends.then_some(gemm::Finish { store: &store, end: None });
        let patches_start = patches.as_mut_ptr();
        let block = KC.min(depth) * micro.nr;
        // SAFETY: rows and panels of this task alone; patches are packed before a block is multiplied.
        unsafe {
            gemm::multiply(
                micro,
                left,
                (m0, m1),
                (p0, p1),
                (pixels, depth),
                &|p, _| patches_start.wrapping_add((p - p0) * block),
                Some(&mut |from| {
                    let length = KC.min(depth - from);
                    for p in p0..p1 {
                        let panel =
                            std::slice::from_raw_parts_mut(patches_start.add((p - p0) * block), length * micro.nr);
                        pack_patches(window, image_x, from, p * micro.nr, micro.nr, panel);
                    }
                }),
                target,
                scratch,
                finish,
            );
        }
    }
}
