use super::{Binary, Instruction, Map, Reg, Scalar, Unary};
use halimede_tensor::DType;
use std::rc::Rc;

/// A pointwise formula, to write a [`Map`] the way it stands in a paper:
///
/// ```
/// use halimede_graph::ops::{Expr, Unary};
/// use halimede_tensor::DType;
/// let x = Expr::input(0);
/// let mish = x.clone() * x.apply(Unary::Softplus).apply(Unary::Tanh);
/// assert_eq!(mish.map(DType::F32).instructions.len(), 4);
/// ```
#[derive(Debug, Clone)]
pub struct Expr(Rc<Term>);

#[derive(Debug)]
enum Term {
    Input(usize),
    /// A number of the datatype that the formula is written for.
    Number(f64),
    Scalar(Scalar),
    Unary(Unary, Expr),
    Binary(Binary, Expr, Expr),
    Select(Expr, Expr, Expr),
    Cast(DType, Expr),
}

impl Expr {
    /// The element of an input.
    pub fn input(index: usize) -> Expr {
        Expr(Rc::new(Term::Input(index)))
    }

    /// A number of the datatype that the formula is written for.
    pub fn number(value: f64) -> Expr {
        Expr(Rc::new(Term::Number(value)))
    }

    /// A number of a datatype of its own.
    pub fn scalar(value: Scalar) -> Expr {
        Expr(Rc::new(Term::Scalar(value)))
    }

    /// A function of this.
    pub fn apply(&self, function: Unary) -> Expr {
        Expr(Rc::new(Term::Unary(function, self.clone())))
    }

    /// A function of this and another.
    pub fn with(&self, function: Binary, other: impl Into<Expr>) -> Expr {
        Expr(Rc::new(Term::Binary(function, self.clone(), other.into())))
    }

    /// The larger of this and another.
    pub fn max(&self, other: impl Into<Expr>) -> Expr {
        self.with(Binary::Max, other)
    }

    /// The smaller of this and another.
    pub fn min(&self, other: impl Into<Expr>) -> Expr {
        self.with(Binary::Min, other)
    }

    /// `e` to the power of this.
    pub fn exp(&self) -> Expr {
        self.apply(Unary::Exp)
    }

    /// Whether this is below another.
    pub fn less(&self, other: impl Into<Expr>) -> Expr {
        self.with(Binary::Less, other)
    }

    /// Whether this is above another.
    pub fn greater(&self, other: impl Into<Expr>) -> Expr {
        self.with(Binary::Greater, other)
    }

    /// `yes` where this is true, else `no`.
    pub fn select(&self, yes: impl Into<Expr>, no: impl Into<Expr>) -> Expr {
        Expr(Rc::new(Term::Select(self.clone(), yes.into(), no.into())))
    }

    /// This as another datatype.
    pub fn cast(&self, to: DType) -> Expr {
        Expr(Rc::new(Term::Cast(to, self.clone())))
    }

    /// The program, for elements of `dtype`: what stands twice in the formula is computed once.
    pub fn map(&self, dtype: DType) -> Map {
        let mut writer = Writer { map: Map::default(), dtype, written: Vec::new() };
        let last = writer.write(self);
        // The last instruction is the result; a formula whose root was already written ends earlier.
        writer.map.instructions.truncate(last + 1);
        writer.map
    }
}

struct Writer {
    map: Map,
    dtype: DType,
    /// Shared subexpressions that have a register, by address.
    written: Vec<(*const Term, Reg)>,
}

impl Writer {
    fn write(&mut self, expr: &Expr) -> Reg {
        let address = Rc::as_ptr(&expr.0);
        if let Some(&(_, reg)) = self.written.iter().find(|(known, _)| *known == address) {
            return reg;
        }
        let instruction = match &*expr.0 {
            Term::Input(index) => Instruction::Input(*index),
            Term::Number(value) => Instruction::Constant(Scalar::of(*value, self.dtype)),
            Term::Scalar(scalar) => Instruction::Constant(*scalar),
            Term::Unary(function, a) => Instruction::Unary(*function, self.write(a)),
            Term::Binary(function, a, b) => {
                let (a, b) = (self.write(a), self.write(b));
                Instruction::Binary(*function, a, b)
            }
            Term::Select(condition, yes, no) => {
                let (condition, yes, no) = (self.write(condition), self.write(yes), self.write(no));
                Instruction::Select(condition, yes, no)
            }
            Term::Cast(to, a) => Instruction::Cast(*to, self.write(a)),
        };
        let known = self.map.instructions.iter().position(|earlier| *earlier == instruction);
        let reg = known.unwrap_or_else(|| self.map.push(instruction));
        self.written.push((address, reg));
        reg
    }
}

impl From<f64> for Expr {
    fn from(value: f64) -> Expr {
        Expr::number(value)
    }
}

impl From<f32> for Expr {
    fn from(value: f32) -> Expr {
        Expr::number(value.into())
    }
}

impl From<&Expr> for Expr {
    fn from(expr: &Expr) -> Expr {
        expr.clone()
    }
}

impl<R: Into<Expr>> std::ops::Add<R> for Expr {
    type Output = Expr;
    fn add(self, other: R) -> Expr {
        self.with(Binary::Add, other)
    }
}

impl<R: Into<Expr>> std::ops::Sub<R> for Expr {
    type Output = Expr;
    fn sub(self, other: R) -> Expr {
        self.with(Binary::Sub, other)
    }
}

impl<R: Into<Expr>> std::ops::Mul<R> for Expr {
    type Output = Expr;
    fn mul(self, other: R) -> Expr {
        self.with(Binary::Mul, other)
    }
}

impl<R: Into<Expr>> std::ops::Div<R> for Expr {
    type Output = Expr;
    fn div(self, other: R) -> Expr {
        self.with(Binary::Div, other)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_stands_twice_is_computed_once() {
        let x = Expr::input(0);
        let square = x.clone() * x.clone();
        let map = (square.clone() + square * 2.0).map(DType::F32);
        use Instruction::{Binary as B, Constant, Input};
        let two = Constant(Scalar::Float(2.0, DType::F32));
        let expected = [Input(0), B(Binary::Mul, 0, 0), two, B(Binary::Mul, 1, 2), B(Binary::Add, 1, 3)];
        assert_eq!(map.instructions, expected);
    }

    #[test]
    fn numbers_take_the_datatype_of_the_formula() {
        let map = Expr::input(0).max(0.0).map(DType::I8);
        assert_eq!(map.instructions[1], Instruction::Constant(Scalar::Int(0, DType::I8)));
    }
}
