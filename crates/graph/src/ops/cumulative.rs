use super::{Facts, TensorOp, Tensors};
use crate::{Fact, OpError};
use halimede_tensor::Tensor;

/// What a running total does.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum CumulativeKind {
    /// Sum (ONNX CumSum).
    Sum,
    /// Product (ONNX CumProd).
    Product,
}

/// Running total along an axis. Inputs: data, axis (an integer scalar).
#[derive(Debug, Clone, PartialEq)]
pub struct Cumulative {
    /// Sum or product.
    pub kind: CumulativeKind,
    /// Leave out the element itself.
    pub exclusive: bool,
    /// Run from the end.
    pub reverse: bool,
}

impl TensorOp for Cumulative {
    fn infer(&self, _inputs: &[Option<&Fact>]) -> Result<Facts, OpError> {
        Err(OpError::unsupported("Cumulative"))
    }

    fn evaluate(&self, _inputs: &[Option<&Tensor>]) -> Result<Tensors, OpError> {
        Err(OpError::unsupported("Cumulative"))
    }
}
