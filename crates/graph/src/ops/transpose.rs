use super::{Facts, TensorOp, Tensors};
use crate::{Fact, OpError};
use halimede_tensor::Tensor;
use smallvec::SmallVec;

/// Reorders axes: output axis `i` is input axis `perm[i]`. Inputs: data.
#[derive(Debug, Clone, PartialEq)]
pub struct Transpose {
    /// The order.
    pub perm: SmallVec<[usize; 6]>,
}

impl TensorOp for Transpose {
    fn infer(&self, _inputs: &[Option<&Fact>]) -> Result<Facts, OpError> {
        Err(OpError::unsupported("Transpose"))
    }

    fn evaluate(&self, _inputs: &[Option<&Tensor>]) -> Result<Tensors, OpError> {
        Err(OpError::unsupported("Transpose"))
    }
}
