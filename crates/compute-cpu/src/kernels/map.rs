//! Pointwise maps over inputs that broadcast.

mod quantized;
mod rows;

use super::Machine;
use crate::map::{BLOCK, Code, Program, Register, Walk, execute, store, store_whole};
use crate::pool::own_bytes;
use halimede_compute::{Arguments, Kernel, Prepared, Step, TensorDesc};
use halimede_graph::OpError;
use halimede_graph::ops::Map;
use halimede_tensor::{DType, View};
use quantized::QuantizedStep;
use rows::RowsStep;
use smallvec::SmallVec;

/// Elements below which one thread does it all: a loop over the pool costs about a microsecond.
const PARALLEL_ELEMENTS: usize = 32 * 1024;

pub(super) struct MapKernel {
    map: Map,
    machine: Machine,
    name: String,
}

impl MapKernel {
    pub fn new(map: Map, machine: Machine) -> MapKernel {
        let name = format!("map {} ({} instructions)", machine.isa.name(), map.instructions.len());
        MapKernel { map, machine, name }
    }
}

impl Kernel for MapKernel {
    fn name(&self) -> &str {
        &self.name
    }

    fn prepare(&self, inputs: &[Option<TensorDesc>], outputs: &[TensorDesc]) -> Result<Prepared, OpError> {
        let inputs: SmallVec<[&TensorDesc; 4]> = inputs.iter().flatten().collect();
        let types: SmallVec<[DType; 4]> = inputs.iter().map(|desc| desc.dtype).collect();
        let mut program = Program::new(&self.map, &types)?;
        let output = &outputs[0];
        if program.result() != output.dtype {
            return Err(OpError::invalid(format!("a map gives {}, not {}", program.result(), output.dtype)));
        }
        // Storing rounds as well, and makes bytes of whole numbers.
        let quantizes = self.map.quantizes() && program.narrows_at_the_end_only();
        if quantizes || output.dtype == DType::Bf16 && program.narrows_at_the_end_only() {
            program.remove_last();
        }
        let walks: Vec<Walk> =
            inputs.iter().map(|desc| Walk::new(&desc.shape, &output.shape)).collect::<Result<_, _>>()?;
        let count = output.len();
        let parts = if count < PARALLEL_ELEMENTS { 1 } else { self.machine.pool.threads() * 2 };
        if let Some(step) = RowsStep::new((&program, &types, &walks), output.dtype, parts, &self.machine) {
            let workspace = step.workspace();
            return Ok(Prepared { step: Box::new(step), workspace });
        }
        let step = Box::new(MapStep {
            types,
            walks,
            count,
            parts,
            registers: program.registers(),
            output: output.dtype,
            quantizes,
            program,
            machine: self.machine.clone(),
        });
        let step = match QuantizedStep::new(step) {
            Ok(step) => {
                let workspace = step.workspace();
                return Ok(Prepared { step: Box::new(step), workspace });
            }
            Err(step) => step,
        };
        let workspace = step.parts * step.part_bytes();
        Ok(Prepared { step, workspace })
    }

    fn in_place(&self) -> SmallVec<[(usize, usize); 2]> {
        // A block is loaded whole before it is stored, and an input of the output's size is read at
        // the element that is written. Datatypes of one size suffice: the planner compares bytes.
        (0..4).map(|input| (input, 0)).collect()
    }
}

struct MapStep {
    program: Program,
    types: SmallVec<[DType; 4]>,
    output: DType,
    /// The program gives whole numbers in f32 that integers of 8 bits hold.
    quantizes: bool,
    walks: Vec<Walk>,
    count: usize,
    parts: usize,
    registers: usize,
    machine: Machine,
}

impl MapStep {
    /// Registers of a part.
    fn part_bytes(&self) -> usize {
        own_bytes(self.registers * size_of::<Register>())
    }
}

impl Step for MapStep {
    fn run(&self, arguments: &Arguments<'_>) {
        let blocks = self.count.div_ceil(BLOCK);
        let output = arguments.outputs[0];
        self.machine.pool.run(self.parts, &|part| {
            let bytes = self.part_bytes();
            assert!((part + 1) * bytes <= arguments.workspace.len());
            // SAFETY: this part's own registers in the workspace, which nobody else uses.
            let registers = unsafe {
                let start = arguments.workspace.as_ptr().add(part * bytes).cast::<Register>();
                std::slice::from_raw_parts_mut(start, self.registers)
            };
            for block in part * blocks / self.parts..(part + 1) * blocks / self.parts {
                let start = block * BLOCK;
                let count = BLOCK.min(self.count - start);
                self.run_block(arguments.inputs, output, registers, start, count);
            }
        });
    }
}

impl MapStep {
    fn run_block(
        &self,
        inputs: &[Option<View<'_>>],
        output: View<'_>,
        registers: &mut [Register],
        start: usize,
        count: usize,
    ) {
        for (code, register) in self.program.codes.iter().zip(&mut *registers) {
            if let Code::Load(input) = *code
                && let Some(view) = inputs.get(input).copied().flatten()
            {
                self.walks[input].load(self.machine.isa, (view, self.types[input]), start, count, 0, register);
            }
        }
        execute(self.machine.isa, &self.program, registers, count);
        let last = &registers[self.registers - 1];
        // SAFETY: the elements of this block belong to this part alone, and what was read of them in
        // place was read above.
        unsafe {
            match self.quantizes {
                true => store_whole(self.machine.isa, last, output, self.output, start, count),
                false => store(self.machine.isa, last, output, self.output, start, count),
            }
        }
    }
}
