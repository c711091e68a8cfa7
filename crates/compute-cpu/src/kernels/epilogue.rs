//! Pointwise work on tiles of a product before they are stored.

use crate::Isa;
use crate::map::{BLOCK, Class, Code, Program, Register, Walk, class, execute};
use halimede_compute::TensorDesc;
use halimede_graph::OpError;
use halimede_graph::ops::Map;
use halimede_tensor::{DType, View};

/// A map whose input 0 is an f32 result and whose other inputs broadcast to the output.
pub(super) struct Epilogue {
    program: Program,
    types: Vec<DType>,
    /// For inputs from 1 on.
    walks: Vec<Walk>,
    isa: Isa,
}

impl Epilogue {
    /// An epilogue for an output; `None` where there is nothing to do. `extra` are the inputs that
    /// follow the operator's own.
    pub fn new(
        map: Option<&Map>,
        extra: &[Option<TensorDesc>],
        output: &TensorDesc,
        isa: Isa,
    ) -> Result<Option<Epilogue>, OpError> {
        let Some(map) = map else { return Ok(None) };
        let mut types = vec![DType::F32];
        let mut walks = Vec::new();
        for desc in extra.iter().flatten() {
            types.push(desc.dtype);
            walks.push(Walk::new(&desc.shape, &output.shape)?);
        }
        let program = Program::new(map, &types)?;
        if program.result() != DType::F32 || output.dtype != DType::F32 {
            return Err(OpError::unsupported("an epilogue that changes the datatype"));
        }
        let floats = program.types.iter().all(|&dtype| class(dtype) == Some(Class::F32) || dtype == DType::Bool);
        if !floats {
            return Err(OpError::unsupported("an epilogue on integers"));
        }
        Ok(Some(Epilogue { program, types, walks, isa }))
    }

    /// Registers that one thread needs.
    pub fn registers(&self) -> usize {
        self.program.registers()
    }

    /// Works on a tile in place. `start` is the position of its first element in the output, `row` the
    /// distance of its rows there, `pitch` their distance in `tile`.
    ///
    /// `extra` are the views of the inputs from 1 on, in the order of `new`.
    pub fn apply(
        &self,
        extra: &[Option<View<'_>>],
        tile: &mut [f32],
        pitch: usize,
        (rows, columns): (usize, usize),
        (start, row): (usize, usize),
        registers: &mut [Register],
    ) {
        let per_block = (BLOCK / pitch).max(1);
        let mut first = 0;
        while first < rows {
            let count = per_block.min(rows - first);
            let elements = &mut tile[first * pitch..(first + count) * pitch];
            for (code, register) in self.program.codes.iter().zip(&mut *registers) {
                match *code {
                    Code::Load(0) => register.f32_mut()[..elements.len()].copy_from_slice(elements),
                    Code::Load(input) => {
                        let Some(view) = extra[input - 1] else { continue };
                        for r in 0..count {
                            let position = start + (first + r) * row;
                            let at = r * pitch;
                            self.walks[input - 1].load(view, self.types[input], position, columns, at, register);
                        }
                    }
                    _ => {}
                }
            }
            execute(self.isa, &self.program, registers, elements.len());
            elements.copy_from_slice(&registers[self.program.registers() - 1].f32()[..elements.len()]);
            first += count;
        }
    }
}
