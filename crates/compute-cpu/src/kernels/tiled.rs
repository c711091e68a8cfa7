//! What products on the matrix unit share: packed weights, operands in two datatypes, finished blocks.

use super::ending::{Ending, UNBOUNDED, add_bias};
use super::epilogue::Epilogue;
use super::packed::PackedWeights;
use crate::Isa;
use crate::map::Register;
use crate::matrix::{BLOCK, Factor, Panels, Sums, pack_panel, panel_len};
use crate::real::Numbers;
use half::bf16;
use halimede_compute::{Arguments, TensorDesc};
use halimede_graph::OpError;
use halimede_graph::ops::Map;
use halimede_tensor::{DType, View};

/// Weights in panels of 32 columns, each as many steps deep as the summed axis needs.
pub(super) struct TiledWeights {
    /// Of the weights as the model has them.
    pub shape: Vec<usize>,
    /// Steps of a panel.
    pub steps: usize,
    panels: PackedWeights<bf16>,
}

impl TiledWeights {
    /// Packs `n` columns whose summed axis is several pieces one after the other, each padded to whole
    /// steps. `bytes` hold f32 numbers, in which `pieces` lie.
    ///
    /// # Safety
    /// Every piece lies inside `bytes`, as offsets in numbers from its start.
    pub unsafe fn pack(
        isa: Isa,
        bytes: &[u8],
        shape: &[usize],
        pieces: &[usize],
        part: (usize, usize),
        (n, k): (usize, usize),
    ) -> Option<TiledWeights> {
        let (row, column) = part;
        let (steps, piece_len) = (pieces.len() * k.div_ceil(bf16::STEP), panel_len::<bf16>(k));
        let mut panels = PackedWeights::zeroed(n.div_ceil(BLOCK) * pieces.len() * piece_len)?;
        for (index, packed) in panels.elements_mut().chunks_exact_mut(piece_len.max(1)).enumerate() {
            let (panel, piece) = (index / pieces.len(), pieces[index % pieces.len()]);
            let start = bytes.as_ptr().cast::<f32>().wrapping_add(piece);
            // SAFETY: the caller's promise.
            unsafe { pack_panel::<bf16, f32>(isa, &Panels { start, row, column, n, k }, panel * BLOCK, packed) };
        }
        Some(TiledWeights { shape: shape.to_vec(), steps, panels })
    }

    /// The first byte of a panel.
    pub fn panel(&self, index: usize) -> *const u8 {
        self.panels[index * self.steps * BLOCK * bf16::STEP..].as_ptr().cast()
    }

    pub fn bytes(&self) -> usize {
        self.panels.bytes()
    }
}

/// Whether an operand of this datatype can be a factor.
pub(super) fn is_factor(desc: &TensorDesc) -> bool {
    matches!(desc.dtype, DType::F32 | DType::Bf16)
}

/// What happens to sums before they are stored, and how they are.
pub(super) struct Finish {
    epilogue: Option<Epilogue>,
    /// The input that holds a number to add to each column.
    bias: Option<usize>,
    /// The first input that the epilogue reads.
    extra: usize,
    output: DType,
    isa: Isa,
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
}

impl Finish {
    /// `bias` is an input with a number for each column, `extra` the first that the epilogue reads.
    pub fn new(
        map: Option<&Map>,
        inputs: &[Option<TensorDesc>],
        bias: Option<usize>,
        extra: usize,
        output: &TensorDesc,
        isa: Isa,
    ) -> Result<Finish, OpError> {
        let biased = bias.and_then(|bias| inputs.get(bias)?.as_ref());
        if let Some(desc) = biased.filter(|desc| desc.dtype != DType::F32) {
            return Err(OpError::unsupported(format!("a bias in {}", desc.dtype)));
        }
        let epilogue = Epilogue::narrowed(map, inputs.get(extra..).unwrap_or_default(), output, isa)?;
        let plain = map.is_none() && output.dtype != DType::F32;
        if plain || !matches!(output.dtype, DType::F32 | DType::Bf16) {
            return Err(OpError::unsupported(format!("a result in {}", output.dtype)));
        }
        Ok(Finish { epilogue, bias: biased.and(bias), extra, output: output.dtype, isa })
    }

    /// Bytes of registers that one thread needs.
    pub fn registers_bytes(&self) -> usize {
        let general = self.epilogue.as_ref().filter(|epilogue| epilogue.common().is_none());
        general.map_or(0, |epilogue| epilogue.registers() * size_of::<Register>())
    }

    /// Stores a piece whose rows lie [`BLOCK`] numbers apart in `sums`.
    ///
    /// # Safety
    /// The piece lies inside the output, and nobody else touches it there.
    pub unsafe fn store(&self, arguments: &Arguments<'_>, piece: Piece, sums: &mut [f32], registers: &mut [Register]) {
        let view = |index: usize| arguments.inputs.get(index).copied().flatten().unwrap_or(View::empty());
        let mut bias = [0f32; BLOCK];
        let common = self.epilogue.as_ref().and_then(Epilogue::common);
        let second = common.and_then(|common| common.bias).map(|input| self.extra + input);
        for input in self.bias.into_iter().chain(second) {
            // SAFETY: inputs are not written during the step.
            let numbers = unsafe { &view(input).slice::<f32>()[piece.column..][..piece.columns] };
            bias.iter_mut().zip(numbers).for_each(|(bias, number)| *bias += number);
        }
        let count = (piece.rows - 1) * piece.row + piece.columns;
        let mut ending = Ending {
            rows: piece.rows,
            columns: piece.columns,
            pitch: BLOCK,
            bias: &bias,
            residual: None,
            residual_last: false,
            function: None,
            bounds: UNBOUNDED,
            target: Numbers::of(arguments.outputs[0], self.output, piece.start, count),
            apart: piece.row,
        };
        let extra = arguments.inputs.get(self.extra..).unwrap_or_default();
        match (&self.epilogue, common) {
            (None, _) => {}
            (_, Some(common)) => ending.follow(common, extra, piece.start),
            (Some(epilogue), None) => {
                let sums = &mut sums[..piece.rows * BLOCK];
                add_bias(self.isa, sums, BLOCK, &bias);
                ending.bias = &[];
                let (shape, place) = ((piece.rows, piece.columns), (piece.start, piece.row));
                epilogue.apply(extra, sums, BLOCK, shape, place, registers);
            }
        }
        // SAFETY: the piece lies inside the output and, where there is one, inside the residual (`Numbers::of`).
        unsafe { ending.run(self.isa, sums) };
    }
}

/// Splits one thread's part of a workspace: registers, then numbers, then sums.
///
/// # Safety
/// The part starts at `start`, is aligned to 64 bytes, has those bytes and belongs to the caller.
pub(super) unsafe fn thread_part<'a>(
    start: *mut u8,
    registers_bytes: usize,
    numbers: usize,
    sums: usize,
) -> (&'a mut [Register], &'a mut [bf16], &'a mut [Sums]) {
    // SAFETY: the caller's promise; any bytes are registers, numbers and sums.
    unsafe {
        let numbers_start = start.add(registers_bytes);
        let sums_start = numbers_start.add(numbers_bytes(numbers));
        (
            std::slice::from_raw_parts_mut(start.cast(), registers_bytes / size_of::<Register>()),
            std::slice::from_raw_parts_mut(numbers_start.cast(), numbers),
            std::slice::from_raw_parts_mut(sums_start.cast(), sums),
        )
    }
}

/// Bytes of [`thread_part`].
pub(super) fn thread_bytes(registers_bytes: usize, numbers: usize, sums: usize) -> usize {
    registers_bytes + numbers_bytes(numbers) + sums * size_of::<Sums>()
}

fn numbers_bytes(numbers: usize) -> usize {
    (numbers * size_of::<bf16>()).next_multiple_of(64)
}
