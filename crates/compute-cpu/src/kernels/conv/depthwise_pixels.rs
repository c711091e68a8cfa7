//! Convolutions whose channels each see one input channel, or few ([`Conv::neighbours`]), on data whose channels lie last: every vector
//! is of neighbouring channels. Data and result lie in memory in f32 or bf16; the sums are f32.
//!
//! ```text
//! for each strip of rows of the output                         a task; its input stays in the second-level cache
//!     for each two registers of channels                       bias and taps put into the order of the data
//!         for each row of the strip                            what rows share stays in the first-level cache
//!             for each block of neighbouring pixels            their sums stay in registers
//!                 for each row of the kernel
//!                     for each pixel that one of them sees
//!                         load it once, multiply it by every tap that it meets
//! ```
//!
//! Integers of 8 bits are multiplied as floats, too, once their zero point is taken off: the sums of so few stay whole. They begin
//! with [`WHOLE`], so that the bits of each are those of a whole number, as which sums of integers are ended.

mod blocks;

use super::pixels::{Lying, Target};
use super::window::Window;
use crate::Isa;
use crate::kernels::Machine;
use crate::kernels::cuts::{Shares, rows_cut};
use crate::kernels::ending::{Ending, UNBOUNDED};
use crate::kernels::epilogue::{Common, Epilogue};
use crate::kernels::lines::{Images, Raster, fill_lines, fill_whole_lines};
use crate::kernels::packed::{PackedWeights, f32_bytes, number};
use crate::kernels::rows::{part_mut, registers_of};
use crate::kernels::tiled::{Finish, KeptColumns, Piece, zero_point_of};
use crate::map::{BLOCK, Register};
use crate::pool::own_bytes;
use crate::real::Numbers;
use crate::vector::{Four, MOST_LANES, Vector};
use blocks::{Block, Convolve, Data, Shared, Weights, blocks};
use half::bf16;
use halimede_compute::layout::{Band, LINE_BYTES, Layout, Stance, Stances};
use halimede_compute::packed::Packer;
use halimede_compute::{Arguments, Step, TensorDesc};
use halimede_graph::OpError;
use halimede_graph::ops::{Conv, Map, whole_weights};
use halimede_tensor::{CastOptions, DType, Tensor, View};
use smallvec::smallvec;
use std::sync::Arc;

/// Registers of channels of a block.
const WIDE: usize = 2;
/// Pixels of a block where there are 32 registers: their sums are 14, beside the taps of a row of the kernel.
const PIXELS: usize = 7;
/// The same with 16 registers, and in images whose rows are so divided with less left over.
const FEW_PIXELS: usize = 4;
/// The first input that an epilogue reads, behind data, weights and bias.
const FIRST_EXTRA: usize = 3;
/// Bytes of the input that a strip of rows reads: they stay near while the channels take their turns.
const STRIP_BYTES: usize = 256 << 10;

/// 1.5 · 2²³, which sums of integers begin with: what is added changes the bits as it would change those of an integer.
const WHOLE: f32 = 12_582_912.0;
/// Taps of integers, at most: so many products of 8 bits are less than 2²² together.
const WHOLE_TAPS: usize = 128;
/// Columns of the sums of integers, row by row, of which a block may fill some: those that are ended together.
const ENDED: usize = crate::matrix::BLOCK;

/// Weights as `[taps, turns, channels]`, zeros filling up the channels to a block of the widest registers. In each turn a channel sees
/// another one of its group.
pub(super) struct TapWeights {
    pub shape: Vec<usize>,
    pub elements: PackedWeights,
    /// Channels of a group; a power of two.
    turns: usize,
}

impl TapWeights {
    /// Whether registers of channels compute a convolution: where each channel sees as few as two of them hold, and lies behind the others.
    pub fn fit(op: &Conv, weights: &[usize], isa: Isa) -> bool {
        let most = WIDE * if isa.has_avx2() { 8 } else { Four::LANES };
        op.channels_last && op.narrow_groups(weights).is_some_and(|width| width <= most)
    }

    /// Weights from one tap to the next, of so many channels.
    fn apart(channels: usize) -> usize {
        channels.next_multiple_of(WIDE * MOST_LANES)
    }

    /// Those of integers: as the floats that they are.
    pub fn pack_integers(tensor: &Tensor, packer: &Packer) -> Option<TapWeights> {
        let whole = whole_weights(tensor, 0).ok()?;
        let taps = whole.shape().iter().skip(1).product::<usize>();
        let floats = whole.cast(DType::F32, CastOptions::default()).ok().filter(|_| taps <= WHOLE_TAPS)?;
        TapWeights::pack(&floats, packer)
    }

    pub fn pack(tensor: &Tensor, packer: &Packer) -> Option<TapWeights> {
        let (&channels, &width) = (tensor.shape().first()?, tensor.shape().get(1)?);
        let taps: Vec<usize> = (0..tensor.shape()[2..].iter().product()).collect();
        let lying = Lying::plain((channels, width), channels / width.max(1), &taps, (taps.len(), 1));
        TapWeights::pack_from(tensor, &lying, packer)
    }

    /// Packs what `lying` names of a tensor, which must lie inside it, of groups of as many rows as channels.
    pub fn pack_from(tensor: &Tensor, lying: &Lying<'_>, packer: &Packer) -> Option<TapWeights> {
        let (bytes, shape) = (f32_bytes(tensor)?, tensor.shape().to_vec());
        let (turns, taps) = (lying.rows, lying.taps.len());
        let apart = TapWeights::apart(lying.groups * turns);
        let elements = PackedWeights::new(packer, "taps, channels filled up", apart * taps * turns, |target| {
            target.fill(0.0);
            for (row, turn) in (0..lying.groups * turns).flat_map(|row| (0..turns).map(move |turn| (row, turn))) {
                let (group, own) = (row / turns, row % turns);
                let from = group * lying.group_stride + own * lying.row_stride + (own ^ turn) * lying.channel_stride;
                for (index, tap) in lying.taps.iter().enumerate() {
                    target[(index * turns + turn) * apart + row] = number(bytes, from + tap);
                }
            }
        })?;
        Some(TapWeights { shape, elements, turns })
    }
}

/// How sums of integers end.
pub(super) struct Integers {
    finish: Finish<u8>,
    /// The datatype of the zero point, where there is one.
    zero: Option<DType>,
}

impl Integers {
    /// For the operands of a convolution of integers.
    pub fn new(
        map: Option<&Map>,
        inputs: &[Option<TensorDesc>],
        output: &TensorDesc,
        isa: Isa,
    ) -> Result<Integers, OpError> {
        let zero = inputs.get(2).and_then(Option::as_ref).map(|zero| zero.dtype);
        Ok(Integers { finish: Finish::of_sums(WHOLE.to_bits() as i32, map, inputs, output, isa)?, zero })
    }
}

/// The strips of each of so many images of which a row reads so many bytes: what a strip reads stays near, and threads have as many rows.
fn strips_of((images, height): (usize, usize), row_bytes: usize, threads: usize) -> Shares {
    let least = height.div_ceil((STRIP_BYTES / row_bytes.max(1)).max(1));
    Shares::new(height, 1, rows_cut(images, height, least, threads))
}

pub(super) struct DepthwisePixelsStep {
    window: Window,
    band: Option<Band>,
    weights: Arc<TapWeights>,
    has_bias: bool,
    epilogue: Option<Epilogue>,
    /// What ends sums of integers, instead of bias and epilogue.
    integers: Option<Integers>,
    data: DType,
    output: DType,
    /// Which pixels of the output are written, where not all are.
    target: Option<Target>,
    /// Images that share a line of channels, where both are blocked, and channels: the lines are the images of the window then.
    in_line: Option<(usize, usize)>,
    machine: Machine,
}

impl DepthwisePixelsStep {
    /// `data` and `output` are the datatypes of both, f32 or bf16.
    pub fn new(
        (window, band): (Window, Option<Band>),
        weights: Arc<TapWeights>,
        has_bias: bool,
        epilogue: Option<Epilogue>,
        (data, output): (DType, DType),
        machine: Machine,
    ) -> DepthwisePixelsStep {
        let (integers, target, in_line) = (None, None, None);
        // Which channels one sees the weights say.
        let window = Window { groups: window.groups * window.rows, inputs: 1, rows: 1, ..window };
        DepthwisePixelsStep {
            window,
            band,
            weights,
            has_bias,
            epilogue,
            integers,
            data,
            output,
            target,
            in_line,
            machine,
        }
    }

    /// `data` are U8 or I8.
    pub fn of_integers(
        place: (Window, Option<Band>),
        weights: Arc<TapWeights>,
        integers: Integers,
        types: (DType, DType),
        machine: Machine,
    ) -> DepthwisePixelsStep {
        let integers = Some(integers);
        DepthwisePixelsStep { integers, ..DepthwisePixelsStep::new(place, weights, false, None, types, machine) }
    }

    /// The same for those pixels of the output alone.
    pub fn of_phase(self, target: Target) -> DepthwisePixelsStep {
        DepthwisePixelsStep { target: Some(target), ..self }
    }

    /// The same where data, result and what is added to it are blocked.
    pub fn in_blocks(self) -> DepthwisePixelsStep {
        let (line, images, channels) = (LINE_BYTES / self.data.size(), self.window.batch, self.window.groups);
        let window = Window { batch: images * channels.div_ceil(line), groups: line, ..self.window };
        DepthwisePixelsStep { window, in_line: Some((images, channels)), ..self }
    }

    /// How operands may lie.
    pub fn stances(&self) -> Option<Stances> {
        let row_bytes = self.window.groups * self.data.size();
        // A general epilogue reads what it knows the shape of. Zeros that fill up lines stay zeros.
        let (common, can_fill) = match self.end() {
            End::Bounds((low, high)) => (None, low <= 0.0 && high >= 0.0),
            End::Blocks(common) => (Some(common), false),
            End::Rows(_) | End::Integers(_) => return None,
        };
        let residual = common.and_then(|common| common.residual);
        let is_alike = self.data == self.output && residual.is_none_or(|residual| residual.dtype == self.output);
        let (inputs, output) = (smallvec![Stance::AsOutput], Stance::Either);
        let mut stances = Stances { inputs, output, takes_borders: false };
        if let Some(residual) = residual {
            let input = FIRST_EXTRA + residual.input;
            stances.inputs.resize(input + 1, Stance::RowMajor);
            stances.inputs[input] = Stance::AsOutput;
        }
        let can_be = fill_whole_lines(row_bytes) || can_fill && fill_lines(row_bytes);
        (can_be && is_alike).then_some(stances)
    }

    fn row_len(&self) -> usize {
        self.window.out[2] * self.window.groups
    }

    /// Where pixels of an image lie in the output.
    fn written(&self) -> Written {
        let channels = self.window.groups;
        let Target { size, first, step } = self.target.unwrap_or_else(|| Target::whole(&self.window));
        let row = size[1] * channels;
        Written { first: first[0] * row + first[1] * channels, row: step[0] * row, pixel: step[1] * channels }
    }

    /// What becomes of sums.
    fn end(&self) -> End<'_> {
        if let Some(integers) = &self.integers {
            return End::Integers(integers);
        }
        let Some(epilogue) = &self.epilogue else { return End::Bounds(UNBOUNDED) };
        match epilogue.common() {
            Some(common) if common.only_bounds() => End::Bounds((common.low, common.high)),
            Some(common) if common.bias.is_none() => End::Blocks(common),
            _ => End::Rows(epilogue),
        }
    }

    /// Numbers of a block's bias and weights in the order in which the data are read.
    fn split_len(&self) -> usize {
        (1 + self.window.taps() * self.weights.turns) * WIDE * MOST_LANES
    }

    /// Per thread, what a block of channels shares, and a row of sums where they do not become results in registers: of a block of
    /// channels, or of all, and the registers of what follows.
    fn thread_bytes(&self) -> usize {
        own_bytes(self.split_len() * size_of::<f32>() + self.end_bytes())
    }

    fn end_bytes(&self) -> usize {
        let bytes = match self.end() {
            End::Bounds(_) => 0,
            End::Blocks(_) => self.window.out[2] * WIDE * MOST_LANES * size_of::<f32>(),
            End::Rows(epilogue) => epilogue.registers() * size_of::<Register>() + self.row_len() * size_of::<f32>(),
            End::Integers(Integers { finish, .. }) => {
                finish.registers_bytes() + self.window.out[2] * ENDED * size_of::<f32>()
            }
        };
        bytes.next_multiple_of(64)
    }

    pub fn workspace(&self) -> usize {
        self.thread_bytes() * self.machine.pool.threads()
    }

    /// Strips of an image.
    fn strips(&self) -> Shares {
        let row_bytes = self.window.x[2] * self.window.groups * self.data.size() * self.window.stride[1];
        match self.end() {
            End::Rows(_) => Shares::of_rows(self.window.out[1], 1),
            _ => strips_of((self.window.batch, self.window.out[1]), row_bytes, self.machine.pool.threads()),
        }
    }

    fn run_as<T: Data>(&self, arguments: &Arguments<'_>) {
        let window = &self.window;
        let strips = self.strips();
        let tasks = window.batch * strips.count;
        let threads = self.machine.pool.threads().min(tasks);
        assert!(arguments.workspace.len() >= threads * self.thread_bytes());
        let view = |index: usize| arguments.inputs.get(index).copied().flatten().unwrap_or(View::empty());
        // SAFETY: inputs are not written during the step.
        let (x, bias) = unsafe {
            let bias: &[f32] = if self.has_bias { view(2).slice() } else { &[] };
            (view(0).slice::<T>(), bias)
        };
        let zero = self.integers.as_ref().map_or(0, |integers| zero_point_of(integers.zero, arguments)) as f32;
        let begin = if self.integers.is_some() { WHOLE } else { 0.0 };
        let sizes = [window.x, window.out];
        let images = match self.in_line {
            Some((count, _)) => {
                let raster = |[_, height, width]: [usize; 3]| {
                    let layout = Layout::Blocked;
                    (Raster::of(layout, count, [height, width], window.groups, size_of::<T>()), layout)
                };
                Raster::of_bands(sizes.map(raster), self.band).map(|raster| Images::blocked(count, &raster))
            }
            None => {
                let [from, to] = sizes.map(|[_, height, width]| [height, width]);
                let to = self.target.map_or(to, |target| target.size);
                [from, to].map(|[height, width]| Images::of(height, width * window.groups))
            }
        };
        let written = self.written();
        let convolve = Convolve::<T>::new(self.machine.isa, window.groups, self.output);
        self.machine.pool.run_tasks(threads, tasks, &|thread, task| {
            let (image, rows) = (task / strips.count, strips.range(task % strips.count));
            let [from, to] = images.map(|images| images.start(image));
            let x = &x[from..][..window.image_len()];
            let start = to + written.first + rows.start * written.row;
            let count =
                (rows.len().max(1) - 1) * written.row + (window.out[2].max(1) - 1) * written.pixel + window.groups;
            let target = match self.integers {
                // Their sums go to the scratch, and on from there.
                Some(_) => Numbers::F32(std::ptr::null_mut()),
                None => Numbers::of(arguments.outputs[0], self.output, start, count),
            };
            // The first channel of a line.
            let (channels, line) = match self.in_line {
                Some((count, channels)) => (channels, image / count * window.groups),
                None => (window.groups, 0),
            };
            let mut filled_up = [0.0; LINE_BYTES / size_of::<bf16>()];
            let bias = match bias.get(line..).unwrap_or_default() {
                [] => &[],
                rest if rest.len() < window.groups => {
                    filled_up[..rest.len()].copy_from_slice(rest);
                    &filled_up[..]
                }
                whole => whole,
            };
            let (apart, turns) = (TapWeights::apart(channels), self.weights.turns);
            let weights = Weights { elements: self.weights.elements.get(line..).unwrap_or_default(), apart, turns };
            // SAFETY: each task has rows of the output and each thread its part of the workspace.
            unsafe {
                let scratch = arguments.workspace.part(thread * self.thread_bytes(), self.thread_bytes());
                let split = part_mut::<f32>(scratch, 0, self.split_len()).as_mut_ptr();
                let scratch = scratch.part(self.split_len() * size_of::<f32>(), self.end_bytes());
                let (bounds, apart, row_apart) = (UNBOUNDED, written.pixel, written.row);
                let (channel, is_split) = (0, false);
                let shared = Shared { window, weights, x, zero, begin, bias };
                let block = Block { shared, rows, bounds, channel, target, apart, row_apart, split, is_split };
                match self.end() {
                    End::Bounds(bounds) => {
                        for channel in blocks(convolve.channels, window.groups) {
                            let target = target.from(channel);
                            convolve.run(&Block { channel, bounds, target, ..block.clone() });
                        }
                    }
                    End::Blocks(common) => {
                        let sums = part_mut::<f32>(scratch, 0, window.out[2] * convolve.channels);
                        self.end_blocks(arguments, common, convolve, &block, start, sums);
                    }
                    End::Rows(epilogue) => {
                        let registers_bytes = epilogue.registers() * size_of::<Register>();
                        let registers = registers_of(scratch, 0, registers_bytes);
                        let line = part_mut::<f32>(scratch, registers_bytes / size_of::<f32>(), self.row_len());
                        for channel in blocks(convolve.channels, window.groups) {
                            let (target, apart) = (Numbers::F32(line.as_mut_ptr().add(channel)), window.groups);
                            convolve.run(&Block { channel, target, apart, ..block.clone() });
                        }
                        self.end_row(arguments, epilogue, start, line, target, registers);
                    }
                    End::Integers(integers) => {
                        let registers_bytes = integers.finish.registers_bytes();
                        let registers = registers_of(scratch, 0, registers_bytes);
                        let len = window.out[2] * ENDED;
                        let sums = part_mut::<f32>(scratch, registers_bytes / size_of::<f32>(), len);
                        self.end_integers(arguments, integers, convolve, &block, start, (registers, sums));
                    }
                }
            }
        });
    }

    /// Computes a strip whose first element has the place `start` in the output, and ends its sums a row of a block of
    /// channels at a time.
    ///
    /// # Safety
    /// The target of `strip` is valid for its rows, and nobody else touches it.
    unsafe fn end_blocks<T: Data>(
        &self,
        arguments: &Arguments<'_>,
        common: &Common,
        convolve: Convolve<T>,
        strip: &Block<'_, T>,
        start: usize,
        sums: &mut [f32],
    ) {
        let (channels, width) = (self.window.groups, self.window.out[2]);
        let extra = arguments.inputs.get(FIRST_EXTRA..).unwrap_or_default();
        let mut form = None;
        for channel in blocks(convolve.channels, channels) {
            for (index, row) in strip.rows.clone().enumerate() {
                let at = index * strip.row_apart + channel;
                // SAFETY: the caller's promise; the sums have room for a row of a block; the residual has the output's
                // elements.
                unsafe {
                    let target = Numbers::F32(sums.as_mut_ptr());
                    let rows = row..row + 1;
                    let (apart, is_split) = (convolve.channels, index > 0);
                    convolve.run(&Block { channel, rows, target, apart, is_split, ..strip.clone() });
                    let size = (width, convolve.channels);
                    let mut ending = Ending::new(size, convolve.channels, &[], strip.target.from(at), strip.apart);
                    ending.follow(common, extra, start + at);
                    let form = *form.get_or_insert_with(|| ending.form(self.machine.isa));
                    ending.run_as(form, sums);
                }
            }
        }
    }

    /// Computes a strip of integers whose first element has the place `start` in the output, and ends its sums a row of a block of
    /// channels at a time.
    ///
    /// # Safety
    /// As [`DepthwisePixelsStep::end_blocks`].
    unsafe fn end_integers<T: Data>(
        &self,
        arguments: &Arguments<'_>,
        integers: &Integers,
        convolve: Convolve<T>,
        strip: &Block<'_, T>,
        start: usize,
        (registers, sums): (&mut [Register], &mut [f32]),
    ) {
        let (channels, width) = (self.window.groups, self.window.out[2]);
        let mut columns = KeptColumns::new();
        let mut finishing = integers.finish.begin(arguments, registers, &mut columns);
        for channel in blocks(convolve.channels, channels) {
            let wide = convolve.channels.min(channels);
            for (index, row) in strip.rows.clone().enumerate() {
                let target = Numbers::F32(sums.as_mut_ptr());
                let (apart, is_split) = (ENDED, index > 0);
                let block = Block { channel, rows: row..row + 1, target, apart, is_split, ..strip.clone() };
                // SAFETY: the caller's promise; the sums have room for a row of a block.
                unsafe { convolve.run(&block) };
                let at = start + index * self.row_len() + channel;
                let (columns, row) = (wide, channels);
                let piece = Piece { rows: width, columns, column: channel, start: at, row, has_room: false };
                // SAFETY: the caller's promise.
                unsafe { finishing.store(piece, bytemuck::cast_slice_mut(sums)) };
            }
        }
    }

    /// Applies an epilogue to a row of sums whose first element has the place `start` in the output.
    ///
    /// # Safety
    /// The target is valid for the row, and nobody else touches it.
    unsafe fn end_row(
        &self,
        arguments: &Arguments<'_>,
        epilogue: &Epilogue,
        start: usize,
        line: &mut [f32],
        target: Numbers,
        registers: &mut [Register],
    ) {
        let extra = arguments.inputs.get(FIRST_EXTRA..).unwrap_or_default();
        let (channels, apart) = (self.window.groups, self.written().pixel);
        // Pixels that follow each other are one.
        let (piece, apart) = if apart == channels { (line.len(), 0) } else { (channels, apart) };
        for (pixel, line) in line.chunks_mut(piece.max(1)).enumerate() {
            for (index, block) in line.chunks_mut(BLOCK).enumerate() {
                let (place, columns) = ((start + pixel * apart + index * BLOCK, 0), block.len());
                epilogue.apply(extra, block, columns, (1, columns), place, registers);
            }
            let target = target.from(pixel * apart);
            // SAFETY: the caller's promise.
            unsafe { Ending::new((1, line.len()), line.len(), &[], target, line.len()).run(self.machine.isa, line) };
        }
    }
}

/// Where pixels of an image lie in the output, in elements.
#[derive(Clone, Copy)]
struct Written {
    first: usize,
    /// Distances of rows, and of pixels of a row.
    row: usize,
    pixel: usize,
}

/// How sums end.
enum End<'a> {
    /// In registers, within bounds.
    Bounds((f32, f32)),
    /// A row of a block of channels at a time.
    Blocks(&'a Common),
    /// A row of all channels at a time.
    Rows(&'a Epilogue),
    /// A row of a block of channels at a time, as sums of integers do.
    Integers(&'a Integers),
}

impl Step for DepthwisePixelsStep {
    fn run(&self, arguments: &Arguments<'_>) {
        match self.data {
            DType::Bf16 => self.run_as::<bf16>(arguments),
            DType::U8 => self.run_as::<u8>(arguments),
            DType::I8 => self.run_as::<i8>(arguments),
            _ => self.run_as::<f32>(arguments),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_have_as_many_rows() {
        // Of an image so high whose rows have so many bytes: rows of the first half of all strips, which one of two threads takes first.
        let half = |height: usize, row_bytes| {
            let strips = strips_of((1, height), row_bytes, 2);
            assert!(strips.most() * row_bytes <= STRIP_BYTES.max(row_bytes), "{strips:?}");
            strips.range(strips.count / 2).start
        };
        assert_eq!([half(112, 7 << 10), half(56, 16 << 10), half(14, 42 << 10), half(28, 300 << 10)], [56, 28, 7, 14]);
        assert_eq!(half(7, 20 << 10), 3);
        assert_eq!(strips_of((1, 112), 7 << 10, 1).count, 4, "one thread's strips stay near");
        assert_eq!([strips_of((8, 56), 8 << 10, 2).count, strips_of((0, 0), 0, 2).count], [2, 0]);
    }
}
