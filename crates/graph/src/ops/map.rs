use super::{Facts, TensorOp, Tensors};
use crate::{Fact, OpError};
use halimede_tensor::DType;
use halimede_tensor::Tensor;

/// Number of an instruction whose result is read.
pub type Reg = usize;

/// A number of a datatype.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Scalar {
    /// A number of a floating-point type.
    Float(f64, DType),
    /// A number of an integer type.
    Int(i64, DType),
    /// A truth value.
    Bool(bool),
}

impl Scalar {
    /// The number `value` of a datatype; an integer type truncates it.
    pub fn of(value: f64, dtype: DType) -> Scalar {
        match dtype {
            DType::Bool => Scalar::Bool(value != 0.0),
            integer if integer.is_integer() => Scalar::Int(value as i64, integer),
            float => Scalar::Float(value, float),
        }
    }
}

/// A function of one number. The result has the operand's datatype unless it says otherwise.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "named after what they compute")]
pub enum Unary {
    Abs,
    Neg,
    Sign,
    Sqrt,
    Reciprocal,
    Exp,
    Log,
    Floor,
    Ceil,
    /// To the nearest, halves to even.
    Round,
    Sin,
    Cos,
    Tan,
    Asin,
    Acos,
    Atan,
    Sinh,
    Cosh,
    Tanh,
    Asinh,
    Acosh,
    Atanh,
    Erf,
    Sigmoid,
    /// `ln(1 + eˣ)`.
    Softplus,
    /// `x/2 · (1 + erf(x/√2))`.
    GeluErf,
    /// `x/2 · (1 + tanh(√(2/π)(x + 0.044715x³)))`.
    GeluTanh,
    /// `x · sigmoid(x)`.
    Silu,
    /// Truth values.
    Not,
    /// Every bit of an integer.
    BitNot,
    /// To Bool.
    IsNan,
    /// To Bool, of either sign.
    IsInf,
}

/// A function of two numbers of one datatype, which the result has unless it says otherwise.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "named after what they compute")]
pub enum Binary {
    Add,
    Sub,
    Mul,
    /// Integers truncate toward zero; by zero gives 0.
    Div,
    Pow,
    /// Sign of the divisor, as Python's `%`.
    Mod,
    /// Sign of the dividend, as C's `fmod`.
    Fmod,
    /// NaN where either is.
    Min,
    /// NaN where either is.
    Max,
    And,
    Or,
    Xor,
    BitAnd,
    BitOr,
    BitXor,
    /// Left shift.
    Shl,
    /// Right shift, logical for unsigned types.
    Shr,
    /// To Bool; strings are compared by [`super::Call`].
    Equal,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
    Atan2,
}

/// One step of a [`Map`].
#[derive(Debug, Clone, PartialEq)]
pub enum Instruction {
    /// The element of an input.
    Input(usize),
    /// The same number everywhere.
    Constant(Scalar),
    /// A function of one number.
    Unary(Unary, Reg),
    /// A function of two.
    Binary(Binary, Reg, Reg),
    /// The second where the first (Bool) is true, else the third.
    Select(Reg, Reg, Reg),
    /// Conversion between Bool, integers of 8 bits and more, and floats of 16 bits and more.
    Cast(DType, Reg),
}

/// Pointwise work: a little program run on every element of inputs that broadcast to one shape.
///
/// Each instruction reads earlier ones; the last one's result is the output. 16-bit floats are
/// computed in f32 and rounded at the end, integers wrap. Fusion grafts one map onto another or onto
/// the epilogue of a [`super::Contract`], [`super::Conv`] or [`super::Norm`].
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Map {
    /// The program, never empty.
    pub instructions: Vec<Instruction>,
}

impl Map {
    /// A function of one input.
    pub fn unary(function: Unary) -> Map {
        Map { instructions: vec![Instruction::Input(0), Instruction::Unary(function, 0)] }
    }

    /// A function of two inputs.
    pub fn binary(function: Binary) -> Map {
        use Instruction::{Binary, Input};
        Map { instructions: vec![Input(0), Input(1), Binary(function, 0, 1)] }
    }

    /// Appends an instruction and gives its number.
    pub fn push(&mut self, instruction: Instruction) -> Reg {
        self.instructions.push(instruction);
        self.instructions.len() - 1
    }
}

impl TensorOp for Map {
    fn infer(&self, _inputs: &[Option<&Fact>]) -> Result<Facts, OpError> {
        Err(OpError::unsupported("Map"))
    }

    fn evaluate(&self, _inputs: &[Option<&Tensor>]) -> Result<Tensors, OpError> {
        Err(OpError::unsupported("Map"))
    }
}
