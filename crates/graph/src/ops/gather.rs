use super::{Facts, TensorOp, Tensors};
use crate::{Fact, OpError};
use halimede_tensor::Tensor;

/// Whole slices by index along one axis (ONNX Gather). Inputs: data, indices of any integer type,
/// negative from the end.
#[derive(Debug, Clone, PartialEq)]
pub struct Gather {
    /// Axis, resolved to be non-negative.
    pub axis: usize,
}

/// Single elements by index along one axis (ONNX GatherElements). Inputs: data, indices.
#[derive(Debug, Clone, PartialEq)]
pub struct GatherElements {
    /// Axis, resolved to be non-negative.
    pub axis: usize,
}

/// Slices by tuples of indices (ONNX GatherND). Inputs: data, indices.
#[derive(Debug, Clone, PartialEq)]
pub struct GatherNd {
    /// Leading axes that data and indices share.
    pub batch_dims: usize,
}

impl TensorOp for Gather {
    fn infer(&self, _inputs: &[Option<&Fact>]) -> Result<Facts, OpError> {
        Err(OpError::unsupported("Gather"))
    }

    fn evaluate(&self, _inputs: &[Option<&Tensor>]) -> Result<Tensors, OpError> {
        Err(OpError::unsupported("Gather"))
    }
}

impl TensorOp for GatherElements {
    fn infer(&self, _inputs: &[Option<&Fact>]) -> Result<Facts, OpError> {
        Err(OpError::unsupported("GatherElements"))
    }

    fn evaluate(&self, _inputs: &[Option<&Tensor>]) -> Result<Tensors, OpError> {
        Err(OpError::unsupported("GatherElements"))
    }
}

impl TensorOp for GatherNd {
    fn infer(&self, _inputs: &[Option<&Fact>]) -> Result<Facts, OpError> {
        Err(OpError::unsupported("GatherNd"))
    }

    fn evaluate(&self, _inputs: &[Option<&Tensor>]) -> Result<Tensors, OpError> {
        Err(OpError::unsupported("GatherNd"))
    }
}
