use super::{Binary, Instruction, Map, Scalar, Unary};
use crate::OpError;
use halimede_tensor::DType;

impl Map {
    /// The datatype of every instruction's result; an error where one does not fit its operands.
    pub fn types(&self, inputs: &[DType]) -> Result<Vec<DType>, OpError> {
        let mut types: Vec<DType> = Vec::with_capacity(self.instructions.len());
        for (index, instruction) in self.instructions.iter().enumerate() {
            let operand = |reg: usize| {
                types.get(reg).copied().ok_or_else(|| {
                    OpError::invalid(format!("instruction {index} of a map reads the later instruction {reg}"))
                })
            };
            let dtype = match *instruction {
                Instruction::Input(input) => *inputs
                    .get(input)
                    .ok_or_else(|| OpError::invalid(format!("a map reads input {input} of {}", inputs.len())))?,
                Instruction::Constant(Scalar::Float(_, dtype) | Scalar::Int(_, dtype)) => dtype,
                Instruction::Constant(Scalar::Bool(_)) => DType::Bool,
                Instruction::Unary(function, a) => function.result(operand(a)?)?,
                Instruction::Binary(function, a, b) => function.result(operand(a)?, operand(b)?)?,
                Instruction::Select(condition, yes, no) => select(operand(condition)?, operand(yes)?, operand(no)?)?,
                Instruction::Cast(to, a) => cast(operand(a)?, to)?,
            };
            types.push(dtype);
        }
        match types.is_empty() {
            true => Err(OpError::invalid("a map has no instruction")),
            false => Ok(types),
        }
    }
}

impl Unary {
    /// The datatype of the result.
    pub fn result(self, operand: DType) -> Result<DType, OpError> {
        use Unary::*;
        let (fits, result) = match self {
            Not => (operand == DType::Bool, DType::Bool),
            BitNot => (operand.is_integer(), operand),
            IsNan | IsInf => (is_wide_float(operand), DType::Bool),
            Abs | Neg | Sign | Floor | Ceil | Round => (is_number(operand), operand),
            _ => (is_wide_float(operand), operand),
        };
        if fits { Ok(result) } else { Err(OpError::invalid(format!("{self:?} of {operand}"))) }
    }
}

impl Binary {
    /// The datatype of the result.
    pub fn result(self, a: DType, b: DType) -> Result<DType, OpError> {
        use Binary::*;
        let (fits, result) = match self {
            And | Or | Xor => (a == DType::Bool, DType::Bool),
            BitAnd | BitOr | BitXor => (a.is_integer() || a == DType::Bool, a),
            Shl | Shr => (a.is_integer(), a),
            Equal => (is_number(a) || a == DType::Bool, DType::Bool),
            Less | LessOrEqual | Greater | GreaterOrEqual => (is_number(a), DType::Bool),
            Atan2 => (is_wide_float(a), a),
            Min | Max => (is_number(a) || a == DType::Bool, a),
            Add | Sub | Mul | Div | Pow | Mod | Fmod => (is_number(a), a),
        };
        match a == b && fits {
            true => Ok(result),
            false => Err(OpError::invalid(format!("{self:?} of {a} and {b}"))),
        }
    }
}

fn select(condition: DType, yes: DType, no: DType) -> Result<DType, OpError> {
    let fits = condition == DType::Bool && yes == no && is_element(yes);
    if fits { Ok(yes) } else { Err(OpError::invalid(format!("Select by {condition} between {yes} and {no}"))) }
}

fn cast(from: DType, to: DType) -> Result<DType, OpError> {
    if is_element(from) && is_element(to) {
        Ok(to)
    } else {
        Err(OpError::invalid(format!("a map's Cast of {from} to {to}")))
    }
}

/// What maps compute on: Bool, integers of 8 bits and more, floats of 16 bits and more.
fn is_element(dtype: DType) -> bool {
    dtype == DType::Bool || is_number(dtype)
}

fn is_number(dtype: DType) -> bool {
    (dtype.is_integer() && dtype.bits() >= 8) || is_wide_float(dtype)
}

fn is_wide_float(dtype: DType) -> bool {
    dtype.is_float() && dtype.bits() >= 16
}
