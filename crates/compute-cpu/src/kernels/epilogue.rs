//! Pointwise work on tiles of a product before they are stored.

use crate::Isa;
use crate::isa::multiversion;
use crate::map::{BLOCK, Class, Code, Program, Register, Walk, class, execute};
use halimede_compute::TensorDesc;
use halimede_graph::OpError;
use halimede_graph::ops::{Binary, Map, Scalar};
use halimede_tensor::{DType, View};

/// A map whose input 0 is an f32 result and whose other inputs broadcast to the output.
pub(super) struct Epilogue {
    program: Program,
    types: Vec<DType>,
    /// For inputs from 1 on.
    walks: Vec<Walk>,
    isa: Isa,
    bounded: Option<Bounded>,
}

/// The commonest epilogue, which needs no program: a residual, then bounds (ReLU, ReLU6, Clip).
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Bounded {
    /// The input, after the operator's own, that is added; it has the output's elements.
    pub residual: Option<usize>,
    pub low: f32,
    pub high: f32,
}

impl Bounded {
    fn of(program: &Program, types: &[DType], walks: &[Walk]) -> Option<Bounded> {
        // What each instruction's result is, in these terms.
        enum Term {
            Sums,
            Residual(usize),
            Number(f32),
            Sum(Bounded),
        }
        let none = Bounded { residual: None, low: f32::NEG_INFINITY, high: f32::INFINITY };
        let unbounded = |sum: &Bounded| sum.low == f32::NEG_INFINITY && sum.high == f32::INFINITY;
        let mut terms: Vec<Term> = Vec::new();
        for code in &program.codes {
            let term = match *code {
                Code::Load(0) => Term::Sums,
                Code::Load(input) if types[input] == DType::F32 && matches!(walks[input - 1], Walk::Same) => {
                    Term::Residual(input - 1)
                }
                Code::Constant(Scalar::Float(number, DType::F32)) if !number.is_nan() => Term::Number(number as f32),
                Code::Binary(function, a, b, DType::F32) => {
                    match (function, &terms[a], &terms[b]) {
                        (Binary::Add, Term::Sums, &Term::Residual(input))
                        | (Binary::Add, &Term::Residual(input), Term::Sums) => {
                            Term::Sum(Bounded { residual: Some(input), ..none })
                        }
                        (Binary::Max, Term::Sums, &Term::Number(low))
                        | (Binary::Max, &Term::Number(low), Term::Sums) => Term::Sum(Bounded { low, ..none }),
                        (Binary::Max, Term::Sum(sum), &Term::Number(low))
                        | (Binary::Max, &Term::Number(low), Term::Sum(sum))
                            if unbounded(sum) =>
                        {
                            Term::Sum(Bounded { low, ..*sum })
                        }
                        (Binary::Min, Term::Sums, &Term::Number(high))
                        | (Binary::Min, &Term::Number(high), Term::Sums) => Term::Sum(Bounded { high, ..none }),
                        (Binary::Min, Term::Sum(sum), &Term::Number(high))
                        | (Binary::Min, &Term::Number(high), Term::Sum(sum))
                            if sum.high == f32::INFINITY && sum.low <= high =>
                        {
                            Term::Sum(Bounded { high, ..*sum })
                        }
                        _ => return None,
                    }
                }
                _ => return None,
            };
            terms.push(term);
        }
        match terms.pop()? {
            Term::Sum(sum) => Some(sum),
            _ => None,
        }
    }

    /// Writes `sums + residual` within the bounds to `target`; as many as there are.
    pub fn store(&self, isa: Isa, sums: &[f32], residual: Option<&[f32]>, target: &mut [f32]) {
        bound(isa, sums, residual, (self.low, self.high), target);
    }
}

impl Bounded {
    /// Adds the residual to `sums` and keeps them within the bounds.
    pub fn apply(&self, isa: Isa, sums: &mut [f32], residual: Option<&[f32]>) {
        bound_here(isa, sums, residual, (self.low, self.high));
    }
}

multiversion! {
    fn bound_here(sums: &mut [f32], residual: Option<&[f32]>, bounds: (f32, f32)) = bound_in_place
}

#[inline(always)]
fn bound_in_place(sums: &mut [f32], residual: Option<&[f32]>, bounds: (f32, f32)) {
    match residual {
        None => sums.iter_mut().for_each(|sum| *sum = within(*sum, bounds)),
        Some(residual) => {
            sums.iter_mut().zip(residual).for_each(|(sum, &residual)| *sum = within(*sum + residual, bounds))
        }
    }
}

/// NaN passes, as it does through a program.
#[inline(always)]
fn within(x: f32, (low, high): (f32, f32)) -> f32 {
    if x < low {
        low
    } else if x > high {
        high
    } else {
        x
    }
}

multiversion! {
    fn bound(sums: &[f32], residual: Option<&[f32]>, bounds: (f32, f32), target: &mut [f32]) = bound_each
}

#[inline(always)]
fn bound_each(sums: &[f32], residual: Option<&[f32]>, bounds: (f32, f32), target: &mut [f32]) {
    match residual {
        None => target.iter_mut().zip(sums).for_each(|(target, &sum)| *target = within(sum, bounds)),
        Some(residual) => {
            for ((target, &sum), &residual) in target.iter_mut().zip(sums).zip(residual) {
                *target = within(sum + residual, bounds);
            }
        }
    }
}

impl Epilogue {
    /// The form without a program, where it has that.
    pub fn bounded(&self) -> Option<&Bounded> {
        self.bounded.as_ref()
    }

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
        let bounded = Bounded::of(&program, &types, &walks);
        Ok(Some(Epilogue { program, types, walks, isa, bounded }))
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
