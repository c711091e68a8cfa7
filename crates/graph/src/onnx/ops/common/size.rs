use crate::ops::{Binary, Gather, Op, Range, ShapeOf};
use crate::{Builder, OpError, ValueId};
use halimede_tensor::Tensor;

/// A size on its way into a shape: a number where it is known when the model is loaded, else an i64
/// value of one element that is worked out for each request.
#[derive(Debug, Clone, Copy)]
pub enum Size {
    /// The number.
    Known(i64),
    /// An i64 value of shape `[1]`.
    Value(ValueId),
}

impl Size {
    /// The size of an axis of a value.
    pub fn of(b: &mut Builder, x: ValueId, axis: usize) -> Result<Size, OpError> {
        let known = b.fact(x).shape.as_ref().and_then(|shape| shape.get(axis)?.known());
        if let Some(size) = known {
            return Ok(Size::Known(size));
        }
        let end = Some(axis as i64 + 1);
        Ok(Size::Value(b.add(Op::ShapeOf(ShapeOf { start: axis as i64, end }), &[x])?))
    }

    /// Every size of a value of that rank.
    pub fn all(b: &mut Builder, x: ValueId, rank: usize) -> Result<Vec<Size>, OpError> {
        (0..rank).map(|axis| Size::of(b, x, axis)).collect()
    }

    /// An integer that a scalar or one-element input holds.
    pub fn from_input(b: &mut Builder, x: ValueId) -> Result<Size, OpError> {
        if let Some(elements) = b.fact(x).ints() {
            return match elements[..] {
                [element] => Ok(Size::Known(element)),
                _ => Err(OpError::invalid(format!("expected one integer, got {}", elements.len()))),
            };
        }
        let x = b.cast(x, halimede_tensor::DType::I64)?;
        Ok(Size::Value(b.reshape(x, &[1])?))
    }

    /// The number, where it is known.
    pub fn known(self) -> Option<i64> {
        match self {
            Size::Known(size) => Some(size),
            Size::Value(_) => None,
        }
    }

    /// Sum of two.
    pub fn plus(self, b: &mut Builder, other: impl Into<Size>) -> Result<Size, OpError> {
        self.combine(b, Binary::Add, other.into(), i64::checked_add)
    }

    /// Difference of two.
    pub fn minus(self, b: &mut Builder, other: impl Into<Size>) -> Result<Size, OpError> {
        self.combine(b, Binary::Sub, other.into(), i64::checked_sub)
    }

    /// Product of two.
    pub fn times(self, b: &mut Builder, other: impl Into<Size>) -> Result<Size, OpError> {
        self.combine(b, Binary::Mul, other.into(), i64::checked_mul)
    }

    /// Quotient of two that are not negative, rounded down.
    pub fn over(self, b: &mut Builder, other: impl Into<Size>) -> Result<Size, OpError> {
        self.combine(b, Binary::Div, other.into(), i64::checked_div)
    }

    /// This as a value of shape `[1]`.
    pub fn vector(self, b: &mut Builder) -> ValueId {
        match self {
            Size::Known(size) => b.ints(&[size]),
            Size::Value(value) => value,
        }
    }

    /// This as a value without dimensions.
    pub fn scalar(self, b: &mut Builder) -> Result<ValueId, OpError> {
        match self {
            Size::Known(size) => Ok(b.constant(Tensor::scalar(size))),
            Size::Value(value) => {
                let first = b.constant(Tensor::scalar(0i64));
                b.add(Op::Gather(Gather { axis: 0 }), &[value, first])
            }
        }
    }

    /// `0, 1, 2, …` (i64) below this.
    pub fn positions(self, b: &mut Builder) -> Result<ValueId, OpError> {
        let limit = self.scalar(b)?;
        let (start, step) = (b.constant(Tensor::scalar(0i64)), b.constant(Tensor::scalar(1i64)));
        b.add(Op::Range(Range), &[start, limit, step])
    }

    fn combine(
        self,
        b: &mut Builder,
        function: Binary,
        other: Size,
        known: fn(i64, i64) -> Option<i64>,
    ) -> Result<Size, OpError> {
        if let (Size::Known(x), Size::Known(y)) = (self, other) {
            let overflow = || OpError::invalid(format!("sizes {x} and {y} give none that fits 64 bits"));
            return Ok(Size::Known(known(x, y).ok_or_else(overflow)?));
        }
        let neutral = match function {
            Binary::Add | Binary::Sub => 0,
            _ => 1,
        };
        if other.known() == Some(neutral) {
            return Ok(self);
        }
        let (x, y) = (self.vector(b), other.vector(b));
        Ok(Size::Value(b.binary(function, x, y)?))
    }
}

impl From<i64> for Size {
    fn from(size: i64) -> Size {
        Size::Known(size)
    }
}

/// A one-dimensional i64 value that holds the sizes; a constant where all are known.
pub fn shape(b: &mut Builder, sizes: &[Size]) -> Result<ValueId, OpError> {
    let mut pieces = Vec::new();
    let mut known = Vec::new();
    for size in sizes {
        match size {
            Size::Known(size) => known.push(*size),
            Size::Value(value) => {
                if !known.is_empty() {
                    pieces.push(b.ints(&std::mem::take(&mut known)));
                }
                pieces.push(*value);
            }
        }
    }
    if !known.is_empty() || pieces.is_empty() {
        pieces.push(b.ints(&known));
    }
    match pieces[..] {
        [only] => Ok(only),
        _ => b.add(Op::Concat(crate::ops::Concat { axis: 0 }), &pieces),
    }
}

/// A value under a shape of sizes; one -1 is worked out where no other size is 0.
pub fn reshape(b: &mut Builder, x: ValueId, sizes: &[Size]) -> Result<ValueId, OpError> {
    let infers = sizes.iter().any(|size| size.known() == Some(-1));
    let shape = shape(b, sizes)?;
    b.add(Op::Reshape(crate::ops::Reshape { allow_zero: !infers }), &[x, shape])
}

/// Broadcasts a value to a shape of sizes.
pub fn expand(b: &mut Builder, x: ValueId, sizes: &[Size]) -> Result<ValueId, OpError> {
    let shape = shape(b, sizes)?;
    b.add(Op::Expand(crate::ops::Expand), &[x, shape])
}
