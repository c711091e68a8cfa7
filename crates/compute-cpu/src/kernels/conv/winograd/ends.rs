//! What becomes of the outputs of tiles.

use crate::Isa;
use crate::kernels::conv::finish::Finish;
use crate::kernels::epilogue::Epilogue;
use crate::kernels::tiled::{self, Finishing, KeptColumns, Piece};
use crate::map::Register;
use half::bf16;
use halimede_compute::Arguments;
use halimede_tensor::View;

/// How outputs end.
pub(in crate::kernels::conv) enum Ends {
    /// In f32.
    Floats { has_bias: bool, epilogue: Option<Epilogue> },
    /// In f32 or bf16, where panels are as wide as blocks of a matrix unit.
    Blocks(tiled::Finish),
}

impl Ends {
    /// Bytes of registers that one thread needs.
    pub fn registers_bytes(&self) -> usize {
        match self {
            Ends::Floats { epilogue, .. } => {
                epilogue.as_ref().map_or(0, |epilogue| epilogue.registers() * size_of::<Register>())
            }
            Ends::Blocks(finish) => finish.registers_bytes(),
        }
    }

    /// Begins to end the outputs of a task, whose pixels lie `nr` numbers apart.
    pub(super) fn begin<'a>(
        &'a self,
        arguments: &'a Arguments<'a>,
        registers: &'a mut [Register],
        columns: &'a mut KeptColumns<bf16>,
        (isa, nr): (Isa, usize),
    ) -> Ending<'a> {
        match self {
            Ends::Floats { has_bias, epilogue } => {
                let bias = arguments.inputs.get(2).copied().flatten().filter(|_| *has_bias);
                // SAFETY: inputs are not written during the step.
                let bias = unsafe { bias.unwrap_or(View::empty()).slice() };
                Ending::Floats { arguments, registers, bias, epilogue: epilogue.as_ref(), isa, nr }
            }
            Ends::Blocks(finish) => Ending::Blocks(finish.begin(arguments, registers, columns)),
        }
    }
}

/// Ends at work on the output of one run.
#[allow(clippy::large_enum_variant, reason = "one for each task, which lives on the stack")]
pub(super) enum Ending<'a> {
    Floats {
        arguments: &'a Arguments<'a>,
        registers: &'a mut [Register],
        bias: &'a [f32],
        epilogue: Option<&'a Epilogue>,
        isa: Isa,
        nr: usize,
    },
    Blocks(Finishing<'a, bf16>),
}

impl Ending<'_> {
    /// Stores neighbouring pixels of some channels.
    ///
    /// # Safety
    /// The piece lies inside the output, and nobody else touches it there.
    pub unsafe fn store(&mut self, piece: Piece, sums: &mut [f32]) {
        match self {
            Ending::Floats { arguments, registers, bias, epilogue, isa, nr } => {
                let Piece { rows, columns, column, start, row, .. } = piece;
                let bias = bias.get(column..column + columns).unwrap_or_default();
                let extra = arguments.inputs.get(3..).unwrap_or_default();
                let finish = Finish { bias, epilogue: *epilogue, extra, isa: *isa, nr: *nr };
                // SAFETY: the caller's promise.
                unsafe {
                    let target = arguments.outputs[0].as_ptr().cast::<f32>().add(start);
                    finish.store(sums, (rows, columns), start, target, row, registers);
                }
            }
            // SAFETY: the caller's promise.
            Ending::Blocks(finishing) => unsafe { finishing.store(piece, sums) },
        }
    }
}
