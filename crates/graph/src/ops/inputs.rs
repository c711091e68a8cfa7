//! What shape rules and definitions share: getting at inputs, axes and dimensions.

use crate::{Dim, Dims, Fact, OpError};
use halimede_tensor::{DType, Tensor};

/// The input at a position, which must be there.
pub(crate) fn required<'a, T>(inputs: &[Option<&'a T>], index: usize) -> Result<&'a T, OpError> {
    optional(inputs, index).ok_or_else(|| OpError::invalid(format!("input {index} is missing")))
}

/// The input at a position, which may be missing.
pub(crate) fn optional<'a, T>(inputs: &[Option<&'a T>], index: usize) -> Option<&'a T> {
    inputs.get(index).copied().flatten()
}

/// The elements of an input of integers.
pub(crate) fn integers(tensor: &Tensor) -> Result<Vec<i64>, OpError> {
    if !tensor.dtype().is_integer() {
        return Err(OpError::invalid(format!("expected a tensor of integers, got {}", tensor.dtype())));
    }
    Ok(tensor.to_i64s()?)
}

/// An axis that counts from the end where negative.
pub(crate) fn axis(axis: i64, rank: usize) -> Result<usize, OpError> {
    let resolved = if axis < 0 { axis.saturating_add(rank as i64) } else { axis };
    usize::try_from(resolved)
        .ok()
        .filter(|&axis| axis < rank)
        .ok_or_else(|| OpError::invalid(format!("axis {axis} is outside a tensor of rank {rank}")))
}

/// Slices without elements that are taken one by one, at most.
const EMPTY_SLICES_MAX: usize = 1 << 20;

/// Refuses to take very many slices of a tensor one by one. Those with elements are bounded by memory, those without
/// by nothing else.
pub(crate) fn check_slices(tensor: &Tensor, slices: usize) -> Result<(), OpError> {
    if !tensor.is_empty() || slices <= EMPTY_SLICES_MAX {
        return Ok(());
    }
    let shape = tensor.shape();
    Err(OpError::invalid(format!(
        "{slices} slices without elements of a tensor of shape {shape:?}; at most {EMPTY_SLICES_MAX} are taken"
    )))
}

/// The axes of a list that may count from the end; an error where one stands twice.
pub(crate) fn axes(list: &[i64], rank: usize) -> Result<Vec<usize>, OpError> {
    let mut axes = Vec::with_capacity(list.len().min(rank));
    for &entry in list {
        let entry = axis(entry, rank)?;
        if axes.contains(&entry) {
            return Err(OpError::invalid(format!("axis {entry} stands twice in {list:?}")));
        }
        axes.push(entry);
    }
    Ok(axes)
}

/// Refuses an axis attribute that the tensor does not have.
pub(crate) fn check_axis(axis: usize, rank: usize) -> Result<(), OpError> {
    if axis < rank { Ok(()) } else { Err(OpError::invalid(format!("axis {axis} is outside a tensor of rank {rank}"))) }
}

/// The shape that shapes broadcast to.
pub(crate) fn broadcast(a: &[Dim], b: &[Dim]) -> Result<Dims, OpError> {
    let rank = a.len().max(b.len());
    let at =
        |dims: &[Dim], axis: usize| (axis + dims.len()).checked_sub(rank).map_or(Dim::from(1), |i| dims[i].clone());
    (0..rank)
        .map(|axis| at(a, axis).broadcast(&at(b, axis)))
        .collect::<Option<Dims>>()
        .ok_or_else(|| OpError::invalid(format!("shapes {a:?} and {b:?} cannot be broadcast together")))
}

/// The product of dimensions.
pub(crate) fn product(dims: &[Dim]) -> Dim {
    dims.iter().cloned().fold(Dim::from(1), |product, dim| product * dim)
}

/// An output of the same datatype and shape as an input.
pub(crate) fn like(fact: &Fact) -> Fact {
    Fact { dtype: fact.dtype, shape: fact.shape.clone(), ..Fact::default() }
}

/// An output of a datatype and a shape that may both be unknown.
pub(crate) fn typed(dtype: Option<DType>, shape: Option<Dims>) -> Fact {
    Fact { dtype, shape, ..Fact::default() }
}

/// A shape from numbers that came out of a tensor; an error where one is negative.
pub(crate) fn shape(dims: &[i64]) -> Result<halimede_tensor::Shape, OpError> {
    dims.iter()
        .map(|&dim| usize::try_from(dim).map_err(|_| OpError::invalid(format!("{dims:?} is no shape"))))
        .collect()
}
