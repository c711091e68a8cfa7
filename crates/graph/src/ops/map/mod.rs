mod columns;
mod evaluate;
mod functions;
mod integers;
mod symbols;
mod types;

pub use integers::{Scale, Scaled};

use super::inputs::{broadcast, required, typed};
use super::{Facts, TensorOp, Tensors};
use crate::{Dims, Fact, OpError};
use halimede_tensor::{DType, Tensor};
use smallvec::{SmallVec, smallvec};

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
    /// `x · sigmoid(1.702x)`.
    QuickGelu,
    /// `x · sigmoid(x)`.
    Silu,
    /// `x · max(0, min(1, x/6 + 1/2))`.
    HardSwish,
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

impl Instruction {
    /// The instructions whose results it reads.
    pub fn operands(&self) -> SmallVec<[Reg; 3]> {
        match *self {
            Instruction::Input(_) | Instruction::Constant(_) => smallvec![],
            Instruction::Unary(_, x) | Instruction::Cast(_, x) => smallvec![x],
            Instruction::Binary(_, a, b) => smallvec![a, b],
            Instruction::Select(condition, a, b) => smallvec![condition, a, b],
        }
    }

    /// The same instruction, reading result `places[x]` where it read `x`.
    pub fn moved(&self, places: &[Reg]) -> Instruction {
        match *self {
            Instruction::Input(_) | Instruction::Constant(_) => self.clone(),
            Instruction::Unary(function, x) => Instruction::Unary(function, places[x]),
            Instruction::Binary(function, a, b) => Instruction::Binary(function, places[a], places[b]),
            Instruction::Select(condition, a, b) => Instruction::Select(places[condition], places[a], places[b]),
            Instruction::Cast(to, x) => Instruction::Cast(to, places[x]),
        }
    }
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
    fn infer(&self, inputs: &[Option<&Fact>]) -> Result<Facts, OpError> {
        let facts: Vec<&Fact> = (0..inputs.len()).map(|index| required(inputs, index)).collect::<Result<_, _>>()?;
        let dtypes: Option<Vec<DType>> = facts.iter().map(|fact| fact.dtype).collect();
        let dtype = match dtypes {
            Some(dtypes) => self.types(&dtypes)?.last().copied(),
            None => None,
        };
        let mut shape = Some(Dims::new());
        for fact in &facts {
            shape = match (&shape, &fact.shape) {
                (Some(a), Some(b)) => Some(broadcast(a, b)?),
                _ => None,
            };
        }
        let output = typed(dtype, shape);
        let elements = symbols::elements(self, &facts, output.count());
        Ok(smallvec![output.and_elements(elements)])
    }

    fn evaluate(&self, inputs: &[Option<&Tensor>]) -> Result<Tensors, OpError> {
        let tensors: Vec<&Tensor> = (0..inputs.len()).map(|index| required(inputs, index)).collect::<Result<_, _>>()?;
        Ok(smallvec![evaluate::evaluate(self, &tensors)?])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Dim;

    fn run(map: &Map, inputs: &[Tensor]) -> Tensor {
        let inputs: Vec<Option<&Tensor>> = inputs.iter().map(Some).collect();
        map.evaluate(&inputs).unwrap().remove(0)
    }

    #[test]
    fn inputs_broadcast() {
        let column = Tensor::from_slice(&[2, 1], &[10.0f32, 20.0]).unwrap();
        let row = Tensor::from_slice(&[3], &[1.0f32, 2.0, 3.0]).unwrap();
        let sum = Tensor::from_slice(&[2, 3], &[11.0f32, 12.0, 13.0, 21.0, 22.0, 23.0]).unwrap();
        assert_eq!(run(&Map::binary(Binary::Add), &[column, row]), sum);
        let empty = Tensor::zeros(DType::F32, &[0, 3]).unwrap();
        assert_eq!(run(&Map::binary(Binary::Add), &[empty.clone(), Tensor::scalar(1.0f32)]), empty);
    }

    #[test]
    fn shapes_and_datatypes_follow() {
        let n = Dim::symbol("n");
        let a = Fact::tensor(DType::F32, [n.clone(), Dim::from(1)]);
        let b = Fact::tensor(DType::F32, [Dim::from(3)]);
        let facts = Map::binary(Binary::Less).infer(&[Some(&a), Some(&b)]).unwrap();
        assert_eq!(facts[0], Fact::tensor(DType::Bool, [n, Dim::from(3)]));
        let c = Fact::tensor(DType::I32, [Dim::from(3)]);
        assert!(Map::binary(Binary::Add).infer(&[Some(&a), Some(&c)]).is_err());
        assert!(Map::unary(Unary::Exp).infer(&[Some(&c)]).is_err());
    }

    #[test]
    fn more_elements_than_one_block() {
        let values: Vec<i32> = (0..5000).collect();
        let x = Tensor::from_slice(&[5000], &values).unwrap();
        let doubled: Vec<i32> = values.iter().map(|v| v * 2).collect();
        assert_eq!(run(&Map::binary(Binary::Add), &[x.clone(), x]), Tensor::from_slice(&[5000], &doubled).unwrap());
    }
}
