use super::{Facts, TensorOp, Tensors};
use crate::{Fact, OpError};
use halimede_tensor::Tensor;
use smallvec::SmallVec;

/// How elements become one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "named after ONNX's Reduce operators")]
pub enum ReduceKind {
    Sum,
    Mean,
    Max,
    Min,
    Product,
    SumSquare,
    L1,
    L2,
    LogSum,
    LogSumExp,
}

/// Reduces axes to one element each (ONNX Reduce*). Inputs: data.
#[derive(Debug, Clone, PartialEq)]
pub struct Reduce {
    /// How.
    pub kind: ReduceKind,
    /// Axes, resolved to be non-negative, sorted; no axis reduces nothing (but squares, logs … still apply).
    pub axes: SmallVec<[usize; 6]>,
    /// Keep the axes with size 1.
    pub keep_dims: bool,
}

impl TensorOp for Reduce {
    fn infer(&self, _inputs: &[Option<&Fact>]) -> Result<Facts, OpError> {
        Err(OpError::unsupported("Reduce"))
    }

    fn evaluate(&self, _inputs: &[Option<&Tensor>]) -> Result<Tensors, OpError> {
        Err(OpError::unsupported("Reduce"))
    }
}
