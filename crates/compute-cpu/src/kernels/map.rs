//! Pointwise maps over inputs that broadcast.

use super::Machine;
use crate::map::{BLOCK, Program, Register, execute};
use crate::map::{load, splat, store};
use halimede_compute::{Arguments, Kernel, Prepared, Step, TensorDesc};
use halimede_graph::OpError;
use halimede_graph::ops::Map;
use halimede_tensor::{DType, View};
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
        let program = Program::new(&self.map, &types)?;
        let output = &outputs[0];
        if program.result() != output.dtype {
            return Err(OpError::invalid(format!("a map gives {}, not {}", program.result(), output.dtype)));
        }
        let walks = inputs.iter().map(|desc| Walk::new(&desc.shape, &output.shape)).collect::<Result<_, _>>()?;
        let count = output.len();
        let parts = if count < PARALLEL_ELEMENTS { 1 } else { self.machine.pool.threads() * 2 };
        let step = MapStep {
            types,
            walks,
            count,
            parts,
            registers: program.registers(),
            program,
            machine: self.machine.clone(),
        };
        let workspace = step.parts * step.registers * size_of::<Register>();
        Ok(Prepared { step: Box::new(step), workspace })
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
    walks: Vec<Walk>,
    count: usize,
    parts: usize,
    registers: usize,
    machine: Machine,
}

impl Step for MapStep {
    fn run(&self, arguments: &Arguments<'_>) {
        let blocks = self.count.div_ceil(BLOCK);
        let output = arguments.outputs[0];
        self.machine.pool.run(self.parts, &|part| {
            let bytes = self.registers * size_of::<Register>();
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
            if let crate::map::Code::Load(input) = *code
                && let Some(view) = inputs.get(input).copied().flatten()
            {
                self.walks[input].load(view, self.types[input], start, count, register);
            }
        }
        execute(self.machine.isa, &self.program, registers, count);
        let last = &registers[self.registers - 1];
        // SAFETY: the elements of this block belong to this part alone, and what was read of them in
        // place was read above.
        unsafe { store(last, output, self.program.result(), start, count) };
    }
}

/// How an input is walked in the order of the output.
enum Walk {
    /// Element by element: the input has the output's elements.
    Same,
    /// One element for all.
    Scalar,
    /// Runs of `inner` output elements, each contiguous in the input or one element repeated.
    Strided {
        /// Output dimensions but the innermost, outermost first.
        outer: SmallVec<[usize; 6]>,
        /// Input stride of each, in elements; 0 where it broadcasts.
        strides: SmallVec<[usize; 6]>,
        inner: usize,
        inner_stride: usize,
    },
}

impl Walk {
    fn new(input: &[usize], output: &[usize]) -> Result<Walk, OpError> {
        if input.iter().all(|&size| size == 1) {
            return Ok(Walk::Scalar);
        }
        if input == output {
            return Ok(Walk::Same);
        }
        if input.len() > output.len() {
            return Err(OpError::invalid(format!("shape {input:?} does not broadcast to {output:?}")));
        }
        let lead = output.len() - input.len();
        let own = halimede_tensor::strides(input);
        // Neighbouring axes that the input walks as one are merged.
        let mut dims: SmallVec<[(usize, usize); 6]> = SmallVec::new();
        for (axis, &size) in output.iter().enumerate() {
            let stride = match axis.checked_sub(lead) {
                Some(i) if input[i] == size => own[i],
                Some(i) if input[i] != 1 => {
                    return Err(OpError::invalid(format!("shape {input:?} does not broadcast to {output:?}")));
                }
                _ => 0,
            };
            if size == 1 {
                continue;
            }
            match dims.last_mut() {
                Some((last, last_stride)) if *last_stride == stride * size => {
                    *last *= size;
                    *last_stride = stride;
                }
                _ => dims.push((size, stride)),
            }
        }
        let (inner, inner_stride) = dims.pop().unwrap_or((1, 1));
        if dims.is_empty() && inner_stride == 1 {
            return Ok(Walk::Same);
        }
        let (outer, strides) = dims.into_iter().unzip();
        Ok(Walk::Strided { outer, strides, inner, inner_stride })
    }

    /// Reads the elements that belong to the output's `start..start + count`.
    fn load(&self, view: View<'_>, dtype: DType, start: usize, count: usize, register: &mut Register) {
        // SAFETY (all three): inputs are not written during the step, but for an in-place output, whose
        // block is stored after its loads.
        match self {
            Walk::Same => unsafe { load(view, dtype, start, count, 0, register) },
            Walk::Scalar => unsafe { splat(view, dtype, 0, count, 0, register) },
            Walk::Strided { outer, strides, inner, inner_stride } => {
                let mut done = 0;
                while done < count {
                    let position = start + done;
                    let (mut row, column) = (position / inner, position % inner);
                    let run = (inner - column).min(count - done);
                    let mut offset = column * inner_stride;
                    for (&size, &stride) in outer.iter().zip(strides).rev() {
                        offset += row % size * stride;
                        row /= size;
                    }
                    unsafe {
                        match inner_stride {
                            0 => splat(view, dtype, offset, run, done, register),
                            _ => load(view, dtype, offset, run, done, register),
                        }
                    }
                    done += run;
                }
            }
        }
    }
}
