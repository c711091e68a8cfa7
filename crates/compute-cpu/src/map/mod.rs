//! Pointwise programs over blocks of elements.
//!
//! A [`Map`] is compiled once into [`Program`] instructions with fixed datatypes, and run on blocks of
//! [`BLOCK`] elements held in registers: small arrays in the first-level cache. The choice of
//! instruction costs once per block; inside a block plain loops are vectorised by the compiler, once
//! per instruction set. 16-bit floats are computed as f32, integers and Bool as i64 that is wrapped to
//! the width of its datatype after each step.

mod convert;
pub(crate) use convert::{load, splat, store, store_whole};
mod execute;
mod functions;
mod walk;

pub(crate) use execute::execute;
pub(crate) use functions::{exp, exp_down, gelu_erf, gelu_tanh, share_near, sigmoid, sigmoid_near, tanh};
pub(crate) use walk::Walk;

use halimede_graph::OpError;
use halimede_graph::ops::{Binary, Instruction, Map, Scalar, Unary};
use halimede_tensor::DType;

/// Elements per block.
pub(crate) const BLOCK: usize = 256;

/// One register: a block of elements of any class.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(crate) struct Register([u64; BLOCK]);

// SAFETY: an array of u64 without padding: 2048 bytes, a multiple of the alignment.
unsafe impl bytemuck::Zeroable for Register {}
// SAFETY: as above.
unsafe impl bytemuck::Pod for Register {}

impl Register {
    #[inline(always)]
    pub fn f32(&self) -> &[f32] {
        &bytemuck::cast_slice(&self.0)[..BLOCK]
    }

    #[inline(always)]
    pub fn f32_mut(&mut self) -> &mut [f32] {
        &mut bytemuck::cast_slice_mut(&mut self.0)[..BLOCK]
    }

    #[inline(always)]
    pub fn f64(&self) -> &[f64] {
        bytemuck::cast_slice(&self.0)
    }

    #[inline(always)]
    pub fn f64_mut(&mut self) -> &mut [f64] {
        bytemuck::cast_slice_mut(&mut self.0)
    }

    #[inline(always)]
    pub fn i64(&self) -> &[i64] {
        bytemuck::cast_slice(&self.0)
    }

    #[inline(always)]
    pub fn i64_mut(&mut self) -> &mut [i64] {
        bytemuck::cast_slice_mut(&mut self.0)
    }
}

/// How a datatype is computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Class {
    F32,
    F64,
    Int,
}

/// The class of a datatype; `None` for what a map does not compute.
pub(crate) fn class(dtype: DType) -> Option<Class> {
    Some(match dtype {
        DType::F32 | DType::F16 | DType::Bf16 => Class::F32,
        DType::F64 => Class::F64,
        DType::Bool => Class::Int,
        d if d.is_integer() && d.bits() >= 8 => Class::Int,
        _ => return None,
    })
}

/// One instruction with its datatypes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Code {
    Load(usize),
    Constant(Scalar),
    Unary(Unary, usize, DType),
    Binary(Binary, usize, usize, DType),
    Select(usize, usize, usize, Class),
    Cast { from: DType, to: DType, register: usize },
}

/// A map for given input datatypes.
#[derive(Debug, Clone)]
pub(crate) struct Program {
    pub codes: Vec<Code>,
    /// Datatype of each instruction's result.
    pub types: Vec<DType>,
}

impl Program {
    /// Fixes the datatypes of a map. An error where it mixes datatypes or has one that is not computed
    /// pointwise.
    pub fn new(map: &Map, inputs: &[DType]) -> Result<Program, OpError> {
        let mut program = Program { codes: Vec::new(), types: Vec::new() };
        for instruction in &map.instructions {
            let (code, dtype) = program.compile(instruction, inputs)?;
            if class(dtype).is_none() {
                return Err(OpError::unsupported(format!("pointwise work on {dtype}")));
            }
            program.codes.push(code);
            program.types.push(dtype);
        }
        if program.codes.is_empty() {
            return Err(OpError::invalid("a map without instructions"));
        }
        Ok(program)
    }

    /// Number of registers.
    pub fn registers(&self) -> usize {
        self.codes.len()
    }

    /// Datatype of the result.
    pub fn result(&self) -> DType {
        self.types[self.types.len() - 1]
    }

    /// Whether the result is f32, or is made from f32 by the last instruction.
    pub fn narrows_at_the_end_only(&self) -> bool {
        match self.codes[self.codes.len() - 1] {
            Code::Cast { from: DType::F32, to: DType::Bf16 | DType::U8 | DType::I8, register } => {
                register + 2 == self.codes.len()
            }
            _ => self.result() == DType::F32,
        }
    }

    /// Gives the result of the instruction before the last one.
    ///
    /// # Panics
    /// Where there is none.
    pub fn remove_last(&mut self) {
        assert!(self.codes.len() > 1, "a program of one instruction");
        self.codes.pop();
        self.types.pop();
    }

    fn compile(&self, instruction: &Instruction, inputs: &[DType]) -> Result<(Code, DType), OpError> {
        let dtype = |register: usize| {
            self.types.get(register).copied().ok_or_else(|| OpError::invalid("an instruction reads a later one"))
        };
        Ok(match *instruction {
            Instruction::Input(index) => {
                let dtype = inputs.get(index).copied();
                (Code::Load(index), dtype.ok_or_else(|| OpError::invalid("a map reads an input that is missing"))?)
            }
            Instruction::Constant(scalar) => {
                let dtype = match scalar {
                    Scalar::Float(_, dtype) | Scalar::Int(_, dtype) => dtype,
                    Scalar::Bool(_) => DType::Bool,
                };
                (Code::Constant(scalar), dtype)
            }
            Instruction::Unary(function, x) => {
                let from = dtype(x)?;
                let to = match function {
                    Unary::IsNan | Unary::IsInf => DType::Bool,
                    _ => from,
                };
                (Code::Unary(function, x, from), to)
            }
            Instruction::Binary(function, a, b) => self.binary(function, a, b, dtype(a)?, dtype(b)?)?,
            Instruction::Select(condition, a, b) => {
                let (x, y) = (dtype(a)?, dtype(b)?);
                if x != y || dtype(condition)? != DType::Bool {
                    return Err(OpError::invalid(format!("cannot choose between {x} and {y}")));
                }
                let class = class(x).ok_or_else(|| OpError::unsupported(format!("pointwise work on {x}")))?;
                (Code::Select(condition, a, b, class), x)
            }
            Instruction::Cast(to, register) => (Code::Cast { from: dtype(register)?, to, register }, to),
        })
    }

    fn binary(&self, function: Binary, a: usize, b: usize, x: DType, y: DType) -> Result<(Code, DType), OpError> {
        if x != y && !matches!(function, Binary::Pow | Binary::Shl | Binary::Shr) {
            return Err(OpError::invalid(format!("operands of {function:?} have datatypes {x} and {y}")));
        }
        if x != y && class(x) != class(y) {
            return Err(OpError::unsupported(format!("{function:?} of {x} and {y}")));
        }
        use Binary::{Equal, Greater, GreaterOrEqual, Less, LessOrEqual};
        let to = match function {
            Equal | Less | LessOrEqual | Greater | GreaterOrEqual => DType::Bool,
            _ => x,
        };
        // Small powers are products: exact, and many times faster.
        let code = match (function, self.codes.get(b)) {
            (Binary::Pow, Some(Code::Constant(Scalar::Float(exponent, _)))) => match *exponent {
                2.0 => Code::Binary(Binary::Mul, a, a, x),
                0.5 => Code::Unary(Unary::Sqrt, a, x),
                _ => Code::Binary(function, a, b, x),
            },
            _ => Code::Binary(function, a, b, x),
        };
        Ok((code, to))
    }
}
