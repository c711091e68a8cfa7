//! Tensors of any real type as plain numbers, for definitions that compute.

use super::inputs::typed;
use super::movement::{Offsets, strides};
use super::{Factors, Map};
use crate::{Fact, OpError};
use halimede_tensor::{CastOptions, DType, Shape, Tensor};
use smallvec::SmallVec;

/// The elements of a tensor: floats of every width as f64, integers and Bool as i64 (u64 by its bits).
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Numbers {
    Float(Vec<f64>),
    Int(Vec<i64>),
}

impl Numbers {
    pub(crate) fn read(tensor: &Tensor) -> Result<Numbers, OpError> {
        Ok(if tensor.dtype().is_float() { Numbers::Float(tensor.to_f64s()?) } else { Numbers::Int(tensor.to_i64s()?) })
    }

    /// A tensor of `dtype`; integers keep its low bits.
    pub(crate) fn write(&self, dtype: DType, shape: &[usize]) -> Result<Tensor, OpError> {
        Ok(match self {
            Numbers::Float(v) => Tensor::from_f64s(dtype, shape, v)?,
            Numbers::Int(v) => Tensor::from_i64s(dtype, shape, v)?,
        })
    }
}

/// Datatype of a sum of products of two operands. Numbers of bf16 are numbers of f32 too: as they are, both
/// multiply in f32.
pub(crate) fn product_type(
    multiply: Option<Factors>,
    a: Option<DType>,
    b: Option<DType>,
) -> Result<Option<DType>, OpError> {
    match (multiply, a, b) {
        (None, Some(DType::Bf16), Some(DType::F32)) => Ok(Some(DType::F32)),
        (None, Some(a), Some(b)) if a != b => Err(OpError::invalid(format!("a product of {a} and {b}"))),
        (None, a, _) => Ok(a),
        (Some(factors), a, b) => factors.result(a, b).map(Some),
    }
}

/// The left factors of such a product; `zero_point` is that of integers.
pub(crate) fn read_left(
    multiply: Option<Factors>,
    tensor: &Tensor,
    zero_point: Option<&Tensor>,
) -> Result<Numbers, OpError> {
    match (read_right(multiply, tensor)?, multiply, zero_point) {
        (Numbers::Int(numbers), Some(Factors::Integers), Some(zero)) => {
            let [zero] = zero.to_i64s()?[..] else {
                return Err(OpError::invalid(format!("{} zero points of a left factor", zero.len())));
            };
            Ok(Numbers::Int(numbers.into_iter().map(|number| number - zero).collect()))
        }
        (numbers, ..) => Ok(numbers),
    }
}

/// The right factors of such a product.
pub(crate) fn read_right(multiply: Option<Factors>, tensor: &Tensor) -> Result<Numbers, OpError> {
    match multiply.and_then(Factors::rounded) {
        Some(dtype) if tensor.dtype() != dtype => Numbers::read(&tensor.cast(dtype, CastOptions::default())?),
        _ => Numbers::read(tensor),
    }
}

/// A number that sums of products are made of.
pub(crate) trait Ring: Copy {
    const ZERO: Self;
    /// `self + a · b`.
    fn plus_product(self, a: Self, b: Self) -> Self;
}

impl Ring for f64 {
    const ZERO: f64 = 0.0;
    fn plus_product(self, a: f64, b: f64) -> f64 {
        self + a * b
    }
}

impl Ring for i64 {
    const ZERO: i64 = 0;
    fn plus_product(self, a: i64, b: i64) -> i64 {
        self.wrapping_add(a.wrapping_mul(b))
    }
}

/// A tensor's axes in two groups: those that number the results, and those that each result runs over.
pub(crate) struct Split {
    /// Where each result's elements start, in row-major order of the kept axes.
    pub(crate) starts: Offsets,
    /// Where each element lies from there, in row-major order of the axes run over.
    pub(crate) steps: Vec<usize>,
}

impl Split {
    /// Runs over the axes for which `over` says so.
    pub(crate) fn new(shape: &[usize], over: impl Fn(usize) -> bool) -> Result<Split, OpError> {
        let strides = strides(shape);
        let view = |wanted: bool| {
            let axes = (0..shape.len()).filter(|&axis| over(axis) == wanted);
            let (dims, strides): (Shape, SmallVec<[isize; 6]>) = axes.map(|axis| (shape[axis], strides[axis])).unzip();
            Offsets::new(&dims, 0, &strides)
        };
        let (starts, steps) = (view(false)?, view(true)?);
        // Without results nothing is run over, however long it is.
        let steps = if starts.len() == 0 { Vec::new() } else { steps.collect() };
        Ok(Split { starts, steps })
    }
}

/// What is known after an epilogue that reads `extra` beside the result.
pub(crate) fn after_epilogue(epilogue: &Option<Map>, result: Fact, extra: &[Option<&Fact>]) -> Result<Fact, OpError> {
    let Some(map) = epilogue else { return Ok(result) };
    let dtypes: Option<Vec<DType>> =
        std::iter::once(result.dtype).chain(extra.iter().map(|fact| fact.and_then(|fact| fact.dtype))).collect();
    let dtype = dtypes.map(|dtypes| map.types(&dtypes)).transpose()?.and_then(|types| types.last().copied());
    Ok(typed(dtype, result.shape))
}

/// The result of an epilogue that reads `extra` beside the result.
pub(crate) fn apply_epilogue(
    epilogue: &Option<Map>,
    result: Tensor,
    extra: &[Option<&Tensor>],
) -> Result<Tensor, OpError> {
    use super::TensorOp;
    let Some(map) = epilogue else { return Ok(result) };
    let inputs: Vec<Option<&Tensor>> = std::iter::once(Some(&result)).chain(extra.iter().copied()).collect();
    let out = map.evaluate(&inputs)?.remove(0);
    match out.shape() == result.shape() {
        true => Ok(out),
        false => Err(OpError::invalid(format!("an epilogue widens {:?} to {:?}", result.shape(), out.shape()))),
    }
}
