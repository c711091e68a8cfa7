//! Convolutions whose channels each see one input channel, on data whose channels lie last: every vector
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

use super::window::Window;
use crate::Isa;
use crate::kernels::Machine;
use crate::kernels::cuts::{Shares, rows_cut};
use crate::kernels::ending::{Ending, UNBOUNDED};
use crate::kernels::epilogue::{Common, Epilogue};
use crate::kernels::lines::{Images, Raster, fill_lines, fill_whole_lines};
use crate::kernels::packed::{PackedWeights, f32_bytes};
use crate::kernels::rows::{part_mut, registers_of};
use crate::kernels::tiled::{Finish, KeptColumns, Piece, zero_point_of};
use crate::map::{BLOCK, Register};
use crate::pool::own_bytes;
use crate::real::{Numbers, Real};
use crate::vector::within;
use crate::vector::{Four, MOST_LANES, Vector};
use half::bf16;
use halimede_compute::layout::{Band, LINE_BYTES, Layout, Stance, Stances};
use halimede_compute::packed::Packer;
use halimede_compute::{Arguments, Step, TensorDesc};
use halimede_graph::OpError;
use halimede_graph::ops::Map;
use halimede_graph::ops::whole_weights;
use halimede_tensor::{CastOptions, DType, Element, Tensor, View};
use smallvec::smallvec;
use std::ops::Range;
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

/// Weights as `[taps, channels]`, zeros filling up the channels to a block of the widest registers.
pub(super) struct TapWeights {
    pub shape: Vec<usize>,
    pub elements: PackedWeights,
}

impl TapWeights {
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
        let (bytes, shape) = (f32_bytes(tensor)?, tensor.shape().to_vec());
        let (&channels, taps) = (shape.first()?, shape[1..].iter().product::<usize>());
        let apart = TapWeights::apart(channels);
        let elements = PackedWeights::new(packer, "taps, channels filled up", apart * taps, |target| {
            let source = bytes.as_ptr().cast::<f32>();
            target.fill(0.0);
            for (channel, tap) in (0..channels).flat_map(|channel| (0..taps).map(move |tap| (channel, tap))) {
                // SAFETY: an element of the tensor, read where it lies.
                target[tap * apart + channel] = unsafe { source.add(channel * taps + tap).read_unaligned() };
            }
        })?;
        Some(TapWeights { shape, elements })
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
        let (integers, in_line) = (None, None);
        DepthwisePixelsStep { window, band, weights, has_bias, epilogue, integers, data, output, in_line, machine }
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
        (1 + self.window.taps()) * WIDE * MOST_LANES
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
            None => sizes.map(|[_, height, width]| Images::of(height, width * window.groups)),
        };
        let convolve = Convolve::<T>::new(self.machine.isa, window.groups, self.output);
        self.machine.pool.run_tasks(threads, tasks, &|thread, task| {
            let (image, rows) = (task / strips.count, strips.range(task % strips.count));
            let [from, to] = images.map(|images| images.start(image));
            let x = &x[from..][..window.image_len()];
            let start = to + rows.start * self.row_len();
            let target = match self.integers {
                // Their sums go to the scratch, and on from there.
                Some(_) => Numbers::F32(std::ptr::null_mut()),
                None => Numbers::of(arguments.outputs[0], self.output, start, rows.len() * self.row_len()),
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
            let weights = Weights { elements: &self.weights.elements[line..], apart: TapWeights::apart(channels) };
            // SAFETY: each task has rows of the output and each thread its part of the workspace.
            unsafe {
                let scratch = arguments.workspace.part(thread * self.thread_bytes(), self.thread_bytes());
                let split = part_mut::<f32>(scratch, 0, self.split_len()).as_mut_ptr();
                let scratch = scratch.part(self.split_len() * size_of::<f32>(), self.end_bytes());
                let (bounds, apart) = (UNBOUNDED, window.groups);
                let (channel, is_split) = (0, false);
                let shared = Shared { window, weights, x, zero, begin, bias };
                let block = Block { shared, rows, bounds, channel, target, apart, split, is_split };
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
                            let target = Numbers::F32(line.as_mut_ptr().add(channel));
                            convolve.run(&Block { channel, target, ..block.clone() });
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
                let at = index * self.row_len() + channel;
                // SAFETY: the caller's promise; the sums have room for a row of a block; the residual has the output's
                // elements.
                unsafe {
                    let target = Numbers::F32(sums.as_mut_ptr());
                    let rows = row..row + 1;
                    let (apart, is_split) = (convolve.channels, index > 0);
                    convolve.run(&Block { channel, rows, target, apart, is_split, ..strip.clone() });
                    let size = (width, convolve.channels);
                    let mut ending = Ending::new(size, convolve.channels, &[], strip.target.from(at), channels);
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
        for (index, block) in line.chunks_mut(BLOCK).enumerate() {
            let (place, columns) = ((start + index * BLOCK, 0), block.len());
            epilogue.apply(extra, block, columns, (1, columns), place, registers);
        }
        // SAFETY: the caller's promise.
        unsafe { Ending::new((1, line.len()), line.len(), &[], target, line.len()).run(self.machine.isa, line) };
    }
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

/// Weights from a channel on, by tap.
#[derive(Clone, Copy)]
struct Weights<'a> {
    elements: &'a [f32],
    /// Distance of taps.
    apart: usize,
}

/// Data of a datatype, as they are multiplied.
///
/// # Safety of every method that is not safe
/// As [`Vector`].
#[allow(clippy::missing_safety_doc, reason = "one duty, said above")]
trait Data: Element {
    /// Two registers of numbers less `zero`, in the order in which they are read fastest.
    unsafe fn load_pair<V: Vector>(from: *const Self, zero: V) -> [V; 2];
    /// Puts two registers of neighbours into that order.
    unsafe fn split<V: Vector>(pair: [V; 2]) -> [V; 2];
    /// Writes two registers in that order as neighbours, `at` numbers behind the first.
    unsafe fn store_joined<V: Vector>(pair: [V; 2], to: Numbers, at: usize);
    /// One number less `zero`.
    fn number(self, zero: f32) -> f32;
}

/// Floats have no zero point.
macro_rules! floats {
    ($($float:ty),*) => {
        $(impl Data for $float {
            #[inline(always)]
            unsafe fn load_pair<V: Vector>(from: *const $float, _: V) -> [V; 2] {
                // SAFETY: the caller's promise, here and below.
                unsafe { <$float as Real>::load_pair(from) }
            }

            #[inline(always)]
            unsafe fn split<V: Vector>(pair: [V; 2]) -> [V; 2] {
                // SAFETY: as above.
                unsafe { <$float as Real>::split(pair) }
            }

            #[inline(always)]
            unsafe fn store_joined<V: Vector>(pair: [V; 2], to: Numbers, at: usize) {
                // SAFETY: as above.
                unsafe { <$float as Real>::store_joined(pair, to, at) }
            }

            #[inline(always)]
            fn number(self, _: f32) -> f32 {
                self.widen()
            }
        })*
    };
}
floats!(f32, bf16);

/// Integers become floats as they are read.
macro_rules! integers {
    ($($integer:ty, $widen:ident);*) => {
        $(impl Data for $integer {
            #[inline(always)]
            unsafe fn load_pair<V: Vector>(from: *const $integer, zero: V) -> [V; 2] {
                // SAFETY: the caller's promise, here and below.
                unsafe { [V::$widen(from).minus(zero), V::$widen(from.add(V::LANES)).minus(zero)] }
            }

            #[inline(always)]
            unsafe fn split<V: Vector>(pair: [V; 2]) -> [V; 2] {
                pair
            }

            #[inline(always)]
            unsafe fn store_joined<V: Vector>(pair: [V; 2], to: Numbers, at: usize) {
                // SAFETY: as above.
                unsafe { <f32 as Real>::store_joined(pair, to, at) }
            }

            #[inline(always)]
            fn number(self, zero: f32) -> f32 {
                f32::from(self) - zero
            }
        })*
    };
}
integers!(u8, widen_u8; i8, widen_i8);

/// What all blocks of a run have in common.
#[derive(Clone, Copy)]
struct Shared<'a, T> {
    window: &'a Window,
    weights: Weights<'a>,
    /// The image, and what its numbers are counted from.
    x: &'a [T],
    zero: f32,
    /// What sums begin with: a number for each channel, or one.
    bias: &'a [f32],
    begin: f32,
}

/// Rows of the output, of a block of channels.
#[derive(Clone)]
struct Block<'a, T> {
    shared: Shared<'a, T>,
    rows: Range<usize>,
    /// The first channel.
    channel: usize,
    /// What results are kept within.
    bounds: (f32, f32),
    /// The result of the first channel in the first column of the first row.
    target: Numbers,
    /// Distance of pixels in the target.
    apart: usize,
    /// Room for the bias and the weights of a block of channels, in the order in which its data are read.
    split: *mut f32,
    /// They are there already.
    is_split: bool,
}

/// Computes a block. Having one proves that the machine has its instructions.
#[derive(Clone, Copy)]
struct Convolve<T> {
    run: unsafe fn(&Block<'_, T>),
    /// Channels of a block.
    channels: usize,
}

impl<T: Data> Convolve<T> {
    /// By the widest registers of which so many channels fill a block, for results of a datatype.
    fn new(isa: Isa, channels: usize, output: DType) -> Convolve<T> {
        #[cfg(target_arch = "x86_64")]
        {
            use crate::vector::{Avx2, Avx512};
            if isa.has_avx512_bf16() && channels >= WIDE * Avx512::LANES && output == DType::Bf16 {
                return Convolve { run: x86::avx512_bf16, channels: WIDE * Avx512::LANES };
            }
            if isa.has_avx512() && channels >= WIDE * Avx512::LANES {
                return Convolve { run: x86::avx512, channels: WIDE * Avx512::LANES };
            }
            if isa.has_avx2() && channels >= WIDE * Avx2::LANES {
                return Convolve { run: x86::avx2, channels: WIDE * Avx2::LANES };
            }
        }
        let _ = (isa, output);
        if channels >= WIDE * Four::LANES {
            Convolve { run: convolve::<Four, T>, channels: WIDE * Four::LANES }
        } else {
            Convolve { run: convolve_few, channels }
        }
    }

    /// # Safety
    /// The target of `block` is valid and nobody else touches it, as is its room for bias and weights.
    unsafe fn run(self, block: &Block<'_, T>) {
        // SAFETY: `new` chose instructions that the machine has; the caller's promise.
        unsafe { (self.run)(block) }
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{Block, Data, convolve};
    use crate::vector::{Avx2, Avx512, Avx512Bf16};

    /// # Safety
    /// As [`convolve`], on a machine with AVX-512 F.
    #[target_feature(enable = "avx512f")]
    pub(super) unsafe fn avx512<T: Data>(block: &Block<'_, T>) {
        // SAFETY: the caller's promise, here and below.
        unsafe { convolve::<Avx512, T>(block) }
    }

    /// # Safety
    /// As [`convolve`], on a machine with AVX-512 F, BW and BF16.
    #[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
    pub(super) unsafe fn avx512_bf16<T: Data>(block: &Block<'_, T>) {
        // SAFETY: as above.
        unsafe { convolve::<Avx512Bf16, T>(block) }
    }

    /// # Safety
    /// As [`convolve`], on a machine with AVX2 and FMA.
    #[target_feature(enable = "avx2,fma")]
    pub(super) unsafe fn avx2<T: Data>(block: &Block<'_, T>) {
        // SAFETY: as above.
        unsafe { convolve::<Avx2, T>(block) }
    }
}

/// A block of as many channels as two registers hold.
///
/// # Safety
/// As [`Vector`] and [`Convolve::run`].
#[inline(always)]
unsafe fn convolve<V: Vector, T: Data>(block: &Block<'_, T>) {
    let window = block.shared.window;
    // SAFETY: the caller's promise.
    unsafe {
        match (window.kernel[2], window.stride[2], window.dilation[2]) {
            (3, 1, 1) if ends_alone(window) => block.columns::<V, 3, 1>(),
            (5, 1, 1) if ends_alone(window) => block.columns::<V, 5, 1>(),
            (3, 2, 1) if ends_alone(window) => block.columns::<V, 3, 2>(),
            (5, 2, 1) if ends_alone(window) => block.columns::<V, 5, 2>(),
            _ => block.columns::<V, 1, 1>(),
        }
    }
}

/// Whether a border is narrower than the kernel, on the left, and the first tap of a row's last pixel inside of the image. Of all columns
/// that the touching taps of neighbouring pixels see, one fewer than there are taps may be outside at either end then, and no other.
fn ends_alone(window: &Window) -> bool {
    let ([.., width], [.., out], [.., taps]) = (window.x, window.out, window.kernel);
    let last = (out.saturating_sub(1) * window.stride[2]) as isize - window.before[2];
    window.before[2] < taps as isize && last < width as isize
}

/// The starts of blocks of `size` that cover `0..to`, which is at least one long. The last ends at `to`: it works out again
/// what it shares with the one before.
#[inline(always)]
fn blocks(size: usize, to: usize) -> impl Iterator<Item = usize> {
    (0..to).step_by(size).map(move |start| start.min(to - size))
}

/// Fewer channels than the narrowest block has: all of them.
///
/// # Safety
/// As [`Convolve::run`].
unsafe fn convolve_few<T: Data>(block: &Block<'_, T>) {
    let Shared { window, weights, x: data, zero, bias, begin } = block.shared;
    let channels = window.groups;
    let width = window.out[2];
    for (index, (row, column)) in
        block.rows.clone().flat_map(|row| (0..width).map(move |column| (row, column))).enumerate()
    {
        let mut sums = [0f32; WIDE * Four::LANES];
        let sums = &mut sums[..channels];
        match bias {
            [] => sums.fill(begin),
            bias => sums.copy_from_slice(bias),
        }
        for tap_y in 0..window.kernel[1] {
            let Some(y) = window.source(1, row, tap_y) else { continue };
            for tap_x in 0..window.kernel[2] {
                let Some(from) = window.source(2, column, tap_x) else { continue };
                let x = &data[(y * window.x[2] + from) * channels..][..channels];
                let tap = tap_y * window.kernel[2] + tap_x;
                let weights = &weights.elements[tap * weights.apart..][..channels];
                for (sum, (&x, &weight)) in sums.iter_mut().zip(x.iter().zip(weights)) {
                    *sum += x.number(zero) * weight;
                }
            }
        }
        for (channel, &sum) in sums.iter().enumerate() {
            // SAFETY: the caller's promise.
            unsafe { block.target.set(index * block.apart + channel, within(sum, block.bounds)) };
        }
    }
}

/// Runs a block of code for each of the numbers in turn, which the compiler knows in each.
macro_rules! unrolled {
    ($name:ident in [$($number:literal)*] $code:block) => {
        $({
            let $name: usize = $number;
            $code
        })*
    };
}

impl<T: Data> Block<'_, T> {
    /// All columns, `TAPS` taps of a row of the kernel at a time, which divide its width; several where taps touch, with
    /// the stride `STRIDE` from pixel to pixel.
    ///
    /// # Safety
    /// As [`convolve`].
    #[inline(always)]
    unsafe fn columns<V: Vector, const TAPS: usize, const STRIDE: usize>(&self) {
        let width = self.shared.window.out[2];
        if !self.is_split {
            // SAFETY: the caller's promise.
            unsafe { self.split_shared::<V>() };
        }
        // Each piece costs about as much as a pixel beside its pixels.
        let cost = |pixels: usize| width.div_ceil(pixels) * (pixels + 1);
        for row in self.rows.clone() {
            // SAFETY: the caller's promise.
            unsafe {
                if V::REGISTERS >= 32 && width >= PIXELS && cost(PIXELS) <= cost(FEW_PIXELS) {
                    for column in blocks(PIXELS, width) {
                        self.pixels::<V, TAPS, STRIDE, PIXELS>(row, column);
                    }
                } else if width >= FEW_PIXELS {
                    for column in blocks(FEW_PIXELS, width) {
                        self.pixels::<V, TAPS, STRIDE, FEW_PIXELS>(row, column);
                    }
                } else {
                    for column in 0..width {
                        self.pixels::<V, 1, 1, 1>(row, column);
                    }
                }
            }
        }
    }

    /// Puts the bias and the weights of the block into the order in which its data are read: once for all its pixels.
    ///
    /// # Safety
    /// As [`convolve`].
    #[inline(always)]
    unsafe fn split_shared<V: Vector>(&self) {
        let Shared { window, weights: Weights { elements: weights, apart }, bias, begin, .. } = self.shared;
        let (channel, len, taps) = (self.channel, WIDE * V::LANES, window.taps());
        assert!(weights.len() >= taps.saturating_sub(1) * apart + channel + len);
        // SAFETY: the caller's promise; the bias has those channels, and so have the taps (just checked).
        unsafe {
            for index in 0..=taps {
                let shared: [V; WIDE] = match (index, bias.get(channel..channel + len)) {
                    (0, None) => [V::splat(begin); WIDE],
                    (0, Some(bias)) => <f32 as Real>::load_pair(bias.as_ptr()),
                    (index, _) => <f32 as Real>::load_pair(weights.as_ptr().add((index - 1) * apart + channel)),
                };
                let [a, b] = T::split(shared);
                a.store(self.split.add(index * len));
                b.store(self.split.add(index * len + V::LANES));
            }
        }
    }

    /// `P` neighbouring pixels.
    ///
    /// # Safety
    /// As [`convolve`], once bias and weights were split; [`ends_alone`] where there are several taps.
    #[inline(always)]
    unsafe fn pixels<V: Vector, const TAPS: usize, const STRIDE: usize, const P: usize>(
        &self,
        row: usize,
        column: usize,
    ) {
        let Shared { window, x: data, zero, .. } = self.shared;
        let (channels, channel) = (window.groups, self.channel);
        let (width, len) = (window.x[2], WIDE * V::LANES);
        assert!(channel + len <= channels && data.len() >= window.x[1] * width * channels);
        // What one row of taps of all pixels sees.
        let all_seen = (P - 1) * STRIDE + TAPS;
        // SAFETY: the caller's promise; pixels inside the image and taps of the kernel have `len` channels
        // from the first on (just checked).
        unsafe {
            let zero = V::splat(zero);
            let mut sums: [[V; WIDE]; P] = [<f32 as Real>::load_pair(self.split); P];
            // Several taps are all of a row of the kernel.
            let pieces = if TAPS == 1 { window.kernel[2] } else { 1 };
            // Of several taps the pixels that are seen touch; one tap sees one for each pixel.
            let apart = if TAPS == 1 { window.stride[2] } else { 1 };
            let top = (row * window.stride[1]) as isize - window.before[1];
            for tap_y in 0..window.kernel[1] {
                let y = top.wrapping_add_unsigned(tap_y * window.dilation[1]) as usize;
                if y >= window.x[1] {
                    continue;
                }
                for piece in 0..pieces {
                    let taps = self.split.add((1 + (tap_y * pieces + piece) * TAPS) * len);
                    let mut weights = [[V::splat(0.0); WIDE]; TAPS];
                    for tap in 0..TAPS {
                        weights[tap] = <f32 as Real>::load_pair(taps.add(tap * len));
                    }
                    let first = (column * window.stride[2] + piece * window.dilation[2]) as isize - window.before[2];
                    let from = (y * width) as isize + first;
                    let from = data.as_ptr().wrapping_offset(from * channels as isize + channel as isize);
                    unrolled!(seen in [0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16] {
                        // The others are inside: `ends_alone`.
                        let may_be_outside = TAPS == 1 || seen + 1 < TAPS || seen + TAPS > all_seen;
                        let at = first.wrapping_add_unsigned(seen * apart) as usize;
                        if seen < all_seen && (!may_be_outside || at < width) {
                            let x: [V; WIDE] = T::load_pair(from.wrapping_add(seen * apart * channels), zero);
                            for tap in 0..TAPS {
                                if seen >= tap && (seen - tap).is_multiple_of(STRIDE) && (seen - tap) / STRIDE < P {
                                    let sums = &mut sums[(seen - tap) / STRIDE];
                                    for index in 0..WIDE {
                                        sums[index] = sums[index].plus_product(x[index], weights[tap][index]).in_turn();
                                    }
                                }
                            }
                        }
                    });
                }
            }
            let (low, high) = (V::splat(self.bounds.0), V::splat(self.bounds.1));
            let start = (row - self.rows.start) * window.out[2] + column;
            for pixel in 0..P {
                let [a, b] = sums[pixel];
                let pair = [a.at_least(low).at_most(high), b.at_least(low).at_most(high)];
                T::store_joined(pair, self.target, (start + pixel) * self.apart);
            }
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
