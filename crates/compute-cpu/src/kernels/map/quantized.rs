//! Quantisations of floats, or of a sum of them and a quantised number, which end as those of products do.

use super::MapStep;
use crate::kernels::ending::Ending;
use crate::kernels::epilogue::Common;
use crate::kernels::rows::part_mut;
use crate::map::{BLOCK, Code, Register, Walk};
use crate::pool::own_bytes;
use crate::real::{Numbers, Real};
use half::bf16;
use halimede_compute::{Arguments, Step};
use halimede_tensor::{DType, View};
use smallvec::SmallVec;

/// Elements that are ended at a time: in the first-level cache.
const TOGETHER: usize = 16 * BLOCK;

pub(super) struct QuantizedStep {
    common: Common,
    /// The input that is taken for the sums, and its datatype.
    sums: (usize, DType),
    /// For the last elements: of a block that is not whole, some would be ended twice, which a result in the place of an input does
    /// not bear.
    any: Box<MapStep>,
}

impl QuantizedStep {
    /// The step for one that quantises, if it does no more than a product's end does; that step if not.
    pub fn new(any: Box<MapStep>) -> Result<QuantizedStep, Box<MapStep>> {
        let is_float = |dtype: DType| matches!(dtype, DType::F32 | DType::Bf16);
        let is_sums = |&input: &usize| matches!(any.walks[input], Walk::Same) && is_float(any.types[input]);
        let Some(input) = (0..any.walks.len()).find(is_sums).filter(|_| any.quantizes) else { return Err(any) };
        // The same program with that input for input 0.
        let place = |at: usize| match at {
            0 => input,
            at if at == input => 0,
            at => at,
        };
        let mut program = any.program.clone();
        for code in &mut program.codes {
            if let Code::Load(at) = code {
                *at = place(*at);
            }
        }
        let types: SmallVec<[DType; 4]> = (0..any.types.len()).map(|at| any.types[place(at)]).collect();
        // Numbers for columns are not looked for.
        let walks: Vec<Walk> = (1..any.walks.len())
            .map(|at| if matches!(any.walks[place(at)], Walk::Same) { Walk::Same } else { Walk::Scalar })
            .collect();
        let common = Common::of(&program, &types, &walks, usize::MAX).filter(|common| {
            common.quantize.is_some()
                && common.bias.is_none()
                && common.residual.is_none_or(|residual| place(residual.input + 1) != input)
        });
        match common {
            Some(common) => Ok(QuantizedStep { common, sums: (input, any.types[input]), any }),
            None => Err(any),
        }
    }

    /// Per part, registers for the last elements, which sums have before.
    fn part_bytes(&self) -> usize {
        own_bytes((TOGETHER * size_of::<f32>()).max(self.any.part_bytes()))
    }

    pub fn workspace(&self) -> usize {
        self.any.parts * self.part_bytes()
    }

    /// The inputs in the order in which the end counts them.
    fn extra<'a>(&self, arguments: &Arguments<'a>) -> SmallVec<[Option<View<'a>>; 4]> {
        let mut inputs: SmallVec<[Option<View<'a>>; 4]> = arguments.inputs.iter().copied().collect();
        inputs.swap(0, self.sums.0);
        inputs.remove(0);
        inputs
    }
}

impl Step for QuantizedStep {
    fn run(&self, arguments: &Arguments<'_>) {
        let MapStep { parts, count, output, ref machine, .. } = *self.any;
        let (isa, bytes, whole) = (machine.isa, self.part_bytes(), count / BLOCK);
        let extra = self.extra(arguments);
        let data = arguments.inputs[self.sums.0].unwrap_or(View::empty());
        assert!(arguments.workspace.len() >= self.workspace());
        machine.pool.run(parts, &|part| {
            // This part's own share of the workspace.
            let scratch = arguments.workspace.part(part * bytes, bytes);
            let (mut block, end) = (part * whole / parts, (part + 1) * whole / parts);
            while block < end {
                let start = block * BLOCK;
                let len = TOGETHER.min((end - block) * BLOCK);
                // SAFETY: the share has room for so many; inputs are not written during the step but where the result takes their
                // place, element by element.
                unsafe {
                    let sums = part_mut::<f32>(scratch, 0, len);
                    match self.sums.1 {
                        DType::Bf16 => bf16::widen_all(isa, &data.slice::<bf16>()[start..start + len], sums),
                        _ => sums.copy_from_slice(&data.slice::<f32>()[start..start + len]),
                    }
                    let target = Numbers::of(arguments.outputs[0], output, start, len);
                    let mut ending = Ending::new((1, len), len, &[], target, len);
                    ending.follow(&self.common, &extra, start);
                    ending.run(isa, sums);
                }
                block += len / BLOCK;
            }
            if part + 1 == parts && whole * BLOCK < count {
                // SAFETY: as above; any bytes are registers.
                let registers =
                    unsafe { std::slice::from_raw_parts_mut(scratch.as_ptr().cast::<Register>(), self.any.registers) };
                let start = whole * BLOCK;
                self.any.run_block(arguments.inputs, arguments.outputs[0], registers, start, count - start);
            }
        });
    }
}
