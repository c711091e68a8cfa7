//! What products on the matrix unit share: packed weights, operands in two datatypes, finished blocks.

mod finishing;
mod integers;

#[cfg(target_arch = "x86_64")]
use super::ending::{
    Ending,
    registers::{self, Chosen, Kind, Room},
};
use super::epilogue::Epilogue;
use super::packed::PackedWeights;
use super::tuning::Order;
use crate::Isa;
use crate::map::Register;
use crate::matrix::{self, BLOCK, Factor, Outer, Panels, Sums, pack_panel, panel_len, step};
use crate::pool::own_bytes;
use crate::real::Converts;
pub(super) use finishing::{Finishing, KeptColumns};
use half::{bf16, f16};
use halimede_compute::layout::{LINE_BYTES, Stance, Stances};
use halimede_compute::packed::Packer;
use halimede_compute::{Arguments, TensorDesc};
use halimede_graph::OpError;
use halimede_graph::ops::{Factors, Map};
use halimede_tensor::{DType, Element};
pub(super) use integers::{IntegerWeights, zero_point_of};
use smallvec::{SmallVec, smallvec};
use std::ops::Range;
#[cfg(target_arch = "x86_64")]
use std::sync::OnceLock;

/// Weights in panels of 32 columns, each as many steps deep as the summed axis needs.
pub(super) struct TiledWeights<N = bf16> {
    /// Of the weights as the model has them.
    pub shape: Vec<usize>,
    /// Steps of a panel.
    pub steps: usize,
    columns: usize,
    panels: PackedWeights<N>,
}

impl<N: Element> TiledWeights<N> {
    /// Packs `n` columns whose summed axis is several pieces, each padded to whole steps, which go in
    /// [`matrix::order`]. `pieces` lie so many numbers from `start`.
    ///
    /// # Safety
    /// Every piece can be read, as numbers of any alignment.
    pub unsafe fn pack<T: Converts<N>>(
        (isa, packer): (Isa, &Packer),
        start: *const T,
        shape: &[usize],
        pieces: &[usize],
        part: (usize, usize),
        (n, k): (usize, usize),
    ) -> Option<TiledWeights<N>> {
        let (row, column) = part;
        let steps_of_piece = k.div_ceil(step::<N>());
        let steps = pieces.len() * steps_of_piece;
        let len = n.div_ceil(BLOCK) * pieces.len() * panel_len::<N>(k);
        let panels = PackedWeights::new(packer, "tiled panels, taps together", len, |panels| {
            let mut rest = panels;
            let parts = (0..n).step_by(BLOCK).flat_map(|first| {
                matrix::order(steps_of_piece, pieces.len()).map(move |(piece, steps)| (first, pieces[piece], steps))
            });
            for (first, piece, steps) in parts {
                let from = steps.start * step::<N>();
                let k = k.min(steps.end * step::<N>()) - from;
                let (packed, behind) = std::mem::take(&mut rest).split_at_mut(panel_len::<N>(k));
                let start = start.wrapping_add(piece + from * row);
                // SAFETY: the caller's promise.
                unsafe { pack_panel::<N, T>(isa, &Panels { start, row, column, n, k }, first, packed) };
                rest = behind;
            }
        })?;
        Some(TiledWeights { shape: shape.to_vec(), steps, columns: n, panels })
    }

    /// Numbers of a panel.
    fn panel_len(&self) -> usize {
        self.steps * BLOCK * step::<N>()
    }

    /// The first byte of a panel, and its columns.
    pub fn panel(&self, index: usize) -> (*const u8, usize) {
        let columns = BLOCK.min(self.columns - index * BLOCK);
        (self.panels[index * self.panel_len()..].as_ptr().cast(), columns)
    }

    pub fn bytes(&self) -> usize {
        self.panels.bytes()
    }

    /// Inputs whose memory the result may take: a residual then comes to the caches once, for reading and writing.
    /// Each piece is added before it is written, but where registers overlap, as they do at the end of columns that
    /// do not fill them.
    pub fn in_place(&self) -> SmallVec<[(usize, usize); 2]> {
        /// Behind the operands; a product has no more inputs than this.
        const INPUTS: std::ops::Range<usize> = 2..8;
        let whole = self.columns.is_multiple_of(REGISTER_MOST);
        INPUTS.filter(|_| whole).map(|input| (input, 0)).collect()
    }
}

impl TiledWeights<f16> {
    /// The numbers of rows `first..` of a panel, as many as `to` has lines of 32 columns; zeros beyond the last row.
    /// `first` is even.
    pub fn rows(&self, panel: usize, first: usize, to: &mut [[f16; BLOCK]]) {
        let panel = &self.panels[panel * self.panel_len()..][..self.panel_len()];
        let mut groups = panel.chunks_exact(2 * BLOCK).skip(first / 2);
        for lines in to.chunks_mut(2) {
            let group = groups.next().unwrap_or(&[f16::ZERO; 2 * BLOCK]);
            for (row, line) in lines.iter_mut().enumerate() {
                for (to, pair) in line.iter_mut().zip(group.as_chunks::<2>().0) {
                    *to = pair[row];
                }
            }
        }
    }
}

/// Numbers of the widest registers.
const REGISTER_MOST: usize = 16;
/// Factors whose sums a kernel finishes.
pub(super) trait Product: Factor {
    /// What the operators that multiply these call them.
    const FACTORS: Factors;

    /// What becomes of sums before the epilogue in f32.
    type Scaling: Send + Sync;

    /// How the sums of the columns of a block become f32.
    type Columns: Default;

    /// Works that out for a range of columns, of a block at most.
    fn columns(scaling: &Self::Scaling, arguments: &Arguments<'_>, columns: Range<usize>, made: &mut Self::Columns);

    /// The same where sums are integers; `None` where they are f32.
    fn integers(columns: &Self::Columns) -> Option<&Columns>;

    /// The largest of the numbers that sums of integers are multiplied by, of all columns.
    #[cfg(target_arch = "x86_64")]
    fn largest_scale(scaling: &Self::Scaling, arguments: &Arguments<'_>) -> f32;

    /// What stands beyond the border of a convolution's data.
    fn border(scaling: &Self::Scaling, arguments: &Arguments<'_>) -> Self;

    /// What ends sums of a kind in registers.
    #[cfg(target_arch = "x86_64")]
    fn in_registers(kind: Kind, isa: Isa) -> Option<Chosen>;

    /// What ends sums in registers as an ending does, if they are.
    #[cfg(target_arch = "x86_64")]
    fn ends(ending: &Ending<'_>, isa: Isa) -> Option<Chosen> {
        ending.kind_in_registers(isa).and_then(|kind| Self::in_registers(kind, isa))
    }
}

impl Product for bf16 {
    const FACTORS: Factors = Factors::Bf16;

    type Scaling = ();

    type Columns = ();

    fn columns((): &(), _: &Arguments<'_>, _: Range<usize>, (): &mut ()) {}

    fn integers((): &()) -> Option<&Columns> {
        None
    }

    #[cfg(target_arch = "x86_64")]
    fn largest_scale((): &(), _: &Arguments<'_>) -> f32 {
        1.0
    }

    fn border((): &(), _: &Arguments<'_>) -> bf16 {
        bf16::ZERO
    }

    #[cfg(target_arch = "x86_64")]
    fn in_registers(kind: Kind, isa: Isa) -> Option<Chosen> {
        registers::of_bf16(kind, isa)
    }
}

impl Product for f16 {
    const FACTORS: Factors = Factors::F16;

    type Scaling = ();

    type Columns = ();

    fn columns((): &(), _: &Arguments<'_>, _: Range<usize>, (): &mut ()) {}

    fn integers((): &()) -> Option<&Columns> {
        None
    }

    #[cfg(target_arch = "x86_64")]
    fn largest_scale((): &(), _: &Arguments<'_>) -> f32 {
        1.0
    }

    fn border((): &(), _: &Arguments<'_>) -> f16 {
        f16::ZERO
    }

    /// Here no unit ends sums of these in registers.
    #[cfg(target_arch = "x86_64")]
    fn in_registers(_: Kind, _: Isa) -> Option<Chosen> {
        None
    }
}

/// How sums of integers become numbers, column by column: `f32(sum + added) · scale`.
pub(super) struct Columns {
    added: [i32; BLOCK],
    scales: [f32; BLOCK],
}

impl Default for Columns {
    fn default() -> Columns {
        Columns { added: [0; BLOCK], scales: [1.0; BLOCK] }
    }
}

/// What happens to sums before they are stored, and how they are.
pub(super) struct Finish<F: Product = bf16> {
    scaling: F::Scaling,
    epilogue: Option<Epilogue>,
    /// The input that holds a number to add to each column.
    bias: Option<usize>,
    /// The first input that the epilogue reads.
    extra: usize,
    output: DType,
    /// Factors were rounded for speed, so that a result of 8 bits need not be the nearest.
    is_rounded: bool,
    isa: Isa,
    /// What ends whole blocks in registers, where they are ended so and all columns share the same; known from the first run on.
    #[cfg(target_arch = "x86_64")]
    alike: OnceLock<Option<Box<Alike>>>,
}

/// What ends the rows of blocks that share the same in all columns.
#[cfg(target_arch = "x86_64")]
struct Alike {
    chosen: Chosen,
    shared: Room,
}

/// Sums of adjacent columns of some rows, and where they belong.
#[derive(Clone, Copy)]
pub(super) struct Piece {
    pub rows: usize,
    pub columns: usize,
    /// The first column, for the bias.
    pub column: usize,
    /// Place of the first sum in the output.
    pub start: usize,
    /// Distance of rows there.
    pub row: usize,
    /// What lies behind its columns, up to those of a block, may be read and written, whatever comes of it.
    #[cfg_attr(
        not(target_arch = "x86_64"),
        allow(dead_code, reason = "whole blocks are ended in registers there alone")
    )]
    pub has_room: bool,
}

impl<F: Product<Scaling = ()>> Finish<F> {
    /// `bias` is an input with a number for each column, `extra` the first that the epilogue reads.
    pub fn new(
        map: Option<&Map>,
        inputs: &[Option<TensorDesc>],
        bias: Option<usize>,
        extra: usize,
        output: &TensorDesc,
        isa: Isa,
    ) -> Result<Finish<F>, OpError> {
        let biased = bias.and_then(|bias| inputs.get(bias)?.as_ref());
        if let Some(desc) = biased.filter(|desc| desc.dtype != DType::F32) {
            return Err(OpError::unsupported(format!("a bias in {}", desc.dtype)));
        }
        let epilogue = Epilogue::narrowed(map, inputs.get(extra..).unwrap_or_default(), output, isa)?;
        let plain = map.is_none() && output.dtype != DType::F32;
        if plain || !matches!(output.dtype, DType::F32 | DType::Bf16) {
            return Err(OpError::unsupported(format!("a result in {}", output.dtype)));
        }
        let (bias, output) = (biased.and(bias), output.dtype);
        Ok(Finish::of((), epilogue, bias, extra, output, true, isa))
    }
}

impl<F: Product> Finish<F> {
    fn of(
        scaling: F::Scaling,
        epilogue: Option<Epilogue>,
        bias: Option<usize>,
        extra: usize,
        output: DType,
        is_rounded: bool,
        isa: Isa,
    ) -> Finish<F> {
        Finish {
            scaling,
            epilogue,
            bias,
            extra,
            output,
            is_rounded,
            isa,
            #[cfg(target_arch = "x86_64")]
            alike: OnceLock::new(),
        }
    }

    /// How what it reads and writes may lie, where a result that may be blocked has the stance `output`, and the data have
    /// `data`. A residual is read where the result is written.
    pub fn stances(&self, data: Stance, output: Stance) -> Stances {
        let mut stances = Stances { inputs: smallvec![data], output, takes_borders: false };
        let common = self.epilogue.as_ref().map(Epilogue::common);
        // Lines of both must have as many numbers, and general epilogues read what they know the shape of.
        let of_bytes = |dtype: DType| dtype.size() == self.output.size();
        let residual = common.flatten().and_then(|common| common.residual);
        let is_known = common != Some(None) && residual.is_none_or(|residual| of_bytes(residual.dtype));
        // What ends sums writes a block of columns as one: a line is as long, or longer.
        if output == Stance::RowMajor || !is_known || LINE_BYTES / self.output.size() < BLOCK {
            return Stances { output: Stance::RowMajor, ..stances };
        }
        if let Some(residual) = residual {
            let input = self.extra + residual.input;
            stances.inputs.resize(stances.inputs.len().max(input + 1), Stance::RowMajor);
            stances.inputs[input] = Stance::AsOutput;
        }
        stances
    }

    /// What stands beyond the border of a convolution's data.
    pub fn border(&self, arguments: &Arguments<'_>) -> F {
        F::border(&self.scaling, arguments)
    }

    /// Bytes of a number of the output.
    pub fn output_bytes(&self) -> usize {
        self.output.size()
    }

    /// In which order blocks are finished: as was chosen, or as is best for where the result lies.
    pub fn outer(&self, chosen: Option<Order>, arguments: &Arguments<'_>) -> Outer {
        match chosen {
            Some(Order::Panels) => Outer::Panels,
            Some(Order::Rows) => Outer::Rows,
            None if arguments.is_far => Outer::RowsOfNearPanels,
            None => Outer::Panels,
        }
    }

    /// Bytes of registers that one thread needs.
    pub fn registers_bytes(&self) -> usize {
        let general = self.epilogue.as_ref().filter(|epilogue| epilogue.common().is_none());
        general.map_or(0, |epilogue| epilogue.registers() * size_of::<Register>())
    }

    /// Begins to finish sums, of one task for example, with room for what belongs to columns.
    pub fn begin<'a>(
        &'a self,
        arguments: &'a Arguments<'a>,
        registers: &'a mut [Register],
        columns: &'a mut KeptColumns<F>,
    ) -> Finishing<'a, F> {
        Finishing::new(self, arguments, registers, columns)
    }
}

/// Splits one thread's part of a workspace: registers, then numbers, then sums.
///
/// # Safety
/// The part starts at `start`, is aligned to 64 bytes, has those bytes and belongs to the caller.
pub(super) unsafe fn thread_part<'a, F: Factor>(
    start: *mut u8,
    registers_bytes: usize,
    numbers: usize,
    sums: usize,
) -> (&'a mut [Register], &'a mut [F], &'a mut [Sums<F::Sum>]) {
    // SAFETY: the caller's promise; any bytes are registers, numbers and sums.
    unsafe {
        let numbers_start = start.add(registers_bytes);
        let sums_start = numbers_start.add(numbers_bytes::<F>(numbers));
        (
            std::slice::from_raw_parts_mut(start.cast(), registers_bytes / size_of::<Register>()),
            std::slice::from_raw_parts_mut(numbers_start.cast(), numbers),
            std::slice::from_raw_parts_mut(sums_start.cast(), sums),
        )
    }
}

/// Bytes of [`thread_part`], and to the next one.
pub(super) fn thread_bytes<F: Factor>(registers_bytes: usize, numbers: usize, sums: usize) -> usize {
    own_bytes(registers_bytes + numbers_bytes::<F>(numbers) + sums * size_of::<Sums<F::Sum>>())
}

fn numbers_bytes<F: Factor>(numbers: usize) -> usize {
    (numbers * size_of::<F>()).next_multiple_of(64)
}
