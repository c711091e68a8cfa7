//! What products on the matrix unit share: packed weights, operands in two datatypes, finished blocks.

#[cfg(target_arch = "x86_64")]
mod avx512;

use super::epilogue::{Bounded, Epilogue, activate, within};
use super::packed::PackedWeights;
use crate::Isa;
use crate::isa::multiversion;
use crate::map::Register;
use crate::matrix::{BLOCK, Panels, STEP, Sums, pack_panel, panel_len};
use crate::real::{Real, nearest};
use half::bf16;
use halimede_compute::{Arguments, TensorDesc};
use halimede_graph::OpError;
use halimede_graph::ops::{Map, Unary};
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
        let (steps, piece_len) = (pieces.len() * k.div_ceil(STEP), panel_len(k));
        let mut panels = PackedWeights::zeroed(n.div_ceil(BLOCK) * pieces.len() * piece_len)?;
        for (index, packed) in panels.elements_mut().chunks_exact_mut(piece_len.max(1)).enumerate() {
            let (panel, piece) = (index / pieces.len(), pieces[index % pieces.len()]);
            let start = bytes.as_ptr().cast::<f32>().wrapping_add(piece);
            // SAFETY: the caller's promise.
            unsafe { pack_panel(isa, &Panels { start, row, column, n, k }, panel * BLOCK, packed) };
        }
        Some(TiledWeights { shape: shape.to_vec(), steps, panels })
    }

    /// The first byte of a panel.
    pub fn panel(&self, index: usize) -> *const u8 {
        self.panels[index * self.steps * BLOCK * STEP..].as_ptr().cast()
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
        let general = self.epilogue.as_ref().filter(|epilogue| epilogue.bounded().is_none());
        general.map_or(0, |epilogue| epilogue.registers() * size_of::<Register>())
    }

    /// Stores a piece whose rows lie [`BLOCK`] numbers apart in `sums`.
    ///
    /// # Safety
    /// The piece lies inside the output, and nobody else touches it there.
    pub unsafe fn store(&self, arguments: &Arguments<'_>, piece: Piece, sums: &mut [f32], registers: &mut [Register]) {
        let view = |index: usize| arguments.inputs.get(index).copied().flatten().unwrap_or(View::empty());
        let mut bias = [0f32; BLOCK];
        let bounded = self.epilogue.as_ref().and_then(Epilogue::bounded);
        let second = bounded.and_then(|bounded| bounded.bias).map(|input| self.extra + input);
        for input in self.bias.into_iter().chain(second) {
            // SAFETY: inputs are not written during the step.
            let numbers = unsafe { &view(input).slice::<f32>()[piece.column..][..piece.columns] };
            bias.iter_mut().zip(numbers).for_each(|(bias, number)| *bias += number);
        }
        let output = arguments.outputs[0];
        let last = piece.start + (piece.rows - 1) * piece.row + piece.columns;
        assert!(last * self.output.size() <= output.len(), "a piece outside of the output");
        let mut ending = Ending {
            piece,
            bias: &bias,
            function: None,
            bounds: (f32::NEG_INFINITY, f32::INFINITY),
            residual: Numbers::None,
            target: match self.output {
                DType::Bf16 => Numbers::Bf16(output.as_ptr().cast()),
                _ => Numbers::F32(output.as_ptr().cast()),
            },
        };
        match (&self.epilogue, bounded) {
            (None, _) => {}
            (_, Some(&Bounded { bias: _, residual, residual_type, function, low, high })) => {
                (ending.function, ending.bounds) = (function, (low, high));
                if let Some(input) = residual {
                    let residual = view(self.extra + input);
                    assert!(last * residual_type.size() <= residual.len(), "a piece outside of the residual");
                    ending.residual = match residual_type {
                        DType::Bf16 => Numbers::Bf16(residual.as_ptr().cast()),
                        _ => Numbers::F32(residual.as_ptr().cast()),
                    };
                }
            }
            (Some(epilogue), None) => {
                if self.bias.is_some() {
                    add_bias(self.isa, &mut sums[..piece.rows * BLOCK], &bias);
                    ending.bias = &[0.0; BLOCK];
                }
                let extra = arguments.inputs.get(self.extra..).unwrap_or_default();
                let (shape, place) = ((piece.rows, piece.columns), (piece.start, piece.row));
                epilogue.apply(extra, &mut sums[..piece.rows * BLOCK], BLOCK, shape, place, registers);
            }
        }
        // SAFETY: the piece lies inside the output and, where there is one, inside the residual.
        unsafe { end(self.isa, sums, &ending) };
    }
}

/// Numbers in one of the datatypes of a result.
#[derive(Clone, Copy)]
enum Numbers {
    None,
    F32(*mut f32),
    Bf16(*mut bf16),
}

/// The commonest epilogue: bias, residual, activation, bounds, rounding.
struct Ending<'a> {
    piece: Piece,
    bias: &'a [f32; BLOCK],
    residual: Numbers,
    function: Option<Unary>,
    bounds: (f32, f32),
    target: Numbers,
}

/// # Safety
/// The piece lies inside residual and target.
unsafe fn end(isa: Isa, sums: &[f32], ending: &Ending<'_>) {
    #[cfg(target_arch = "x86_64")]
    if isa.has_avx512() && ending.piece.columns == BLOCK {
        // SAFETY: the caller's promise; an `Isa` with AVX-512 exists only where the machine has it.
        return unsafe { avx512::end_whole_rows(sums, ending) };
    }
    // Reads what the caller promises.
    end_rows(isa, sums, ending);
}

multiversion! {
    fn end_rows(sums: &[f32], ending: &Ending<'_>) = end_each
}

multiversion! {
    fn add_bias(sums: &mut [f32], bias: &[f32; BLOCK]) = add_bias_each
}

#[inline(always)]
fn add_bias_each(sums: &mut [f32], bias: &[f32; BLOCK]) {
    for row in sums.chunks_exact_mut(BLOCK) {
        row.iter_mut().zip(bias).for_each(|(sum, bias)| *sum += bias);
    }
}

#[inline(always)]
fn end_each(sums: &[f32], ending: &Ending<'_>) {
    let Ending { piece, bias, residual, function, bounds, target } = *ending;
    let columns = piece.columns;
    for (row, sums) in sums.chunks_exact(BLOCK).take(piece.rows).enumerate() {
        let at = piece.start + row * piece.row;
        let mut line = [0f32; BLOCK];
        for c in 0..BLOCK {
            line[c] = sums[c] + bias[c];
        }
        // SAFETY: `end` is called for a piece inside residual and target.
        unsafe {
            match residual {
                Numbers::None => {}
                Numbers::F32(start) => {
                    let residual = std::slice::from_raw_parts(start.add(at), columns);
                    line[..columns].iter_mut().zip(residual).for_each(|(sum, &number)| *sum += number);
                }
                Numbers::Bf16(start) => {
                    let residual = std::slice::from_raw_parts(start.add(at), columns);
                    line[..columns].iter_mut().zip(residual).for_each(|(sum, &number)| *sum += number.widen());
                }
            }
            if let Some(function) = function {
                activate(function, &mut line);
            }
            line.iter_mut().for_each(|sum| *sum = within(*sum, bounds));
            match target {
                Numbers::None => {}
                Numbers::F32(start) => {
                    std::slice::from_raw_parts_mut(start.add(at), columns).copy_from_slice(&line[..columns]);
                }
                Numbers::Bf16(start) => {
                    let target = std::slice::from_raw_parts_mut(start.add(at), columns);
                    target.iter_mut().zip(&line).for_each(|(target, &sum)| *target = nearest(sum));
                }
            }
        }
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
