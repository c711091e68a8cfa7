use super::{Facts, TensorOp, Tensors};
use crate::{Fact, OpError};
use halimede_tensor::Tensor;

/// What happens where an element is already there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "named after ONNX's reduction")]
pub enum ScatterReduction {
    None,
    Add,
    Mul,
    Max,
    Min,
}

/// Writes single elements by index along one axis (ONNX ScatterElements). Inputs: data, indices, updates.
#[derive(Debug, Clone, PartialEq)]
pub struct ScatterElements {
    /// Axis, resolved to be non-negative.
    pub axis: usize,
    /// What happens where an element is already there.
    pub reduction: ScatterReduction,
}

/// Writes slices by tuples of indices (ONNX ScatterND). Inputs: data, indices, updates.
#[derive(Debug, Clone, PartialEq)]
pub struct ScatterNd {
    /// What happens where an element is already there.
    pub reduction: ScatterReduction,
}

impl TensorOp for ScatterElements {
    fn infer(&self, _inputs: &[Option<&Fact>]) -> Result<Facts, OpError> {
        Err(OpError::unsupported("ScatterElements"))
    }

    fn evaluate(&self, _inputs: &[Option<&Tensor>]) -> Result<Tensors, OpError> {
        Err(OpError::unsupported("ScatterElements"))
    }
}

impl TensorOp for ScatterNd {
    fn infer(&self, _inputs: &[Option<&Fact>]) -> Result<Facts, OpError> {
        Err(OpError::unsupported("ScatterNd"))
    }

    fn evaluate(&self, _inputs: &[Option<&Tensor>]) -> Result<Tensors, OpError> {
        Err(OpError::unsupported("ScatterNd"))
    }
}
