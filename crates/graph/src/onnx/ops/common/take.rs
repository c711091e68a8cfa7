use crate::OpError;
use crate::ops::{Gather, TensorOp};
use halimede_tensor::Tensor;

/// The slices of a tensor along an axis at these indices.
pub fn take(tensor: &Tensor, axis: usize, indices: &[i64]) -> Result<Tensor, OpError> {
    let indices = Tensor::from_slice(&[indices.len()], indices)?;
    Ok(Gather { axis }.evaluate(&[Some(tensor), Some(&indices)])?.remove(0))
}
