use super::{Facts, TensorOp, Tensors};
use crate::{Fact, OpError};
use halimede_tensor::DType;
use halimede_tensor::Tensor;

/// Conversion between datatypes (ONNX Cast, opset 25): numbers, Bool, strings, 8- and 4-bit floats.
#[derive(Debug, Clone, PartialEq)]
pub struct Cast {
    /// Datatype of the output.
    pub to: DType,
    /// Out-of-range values become the largest finite one of an 8-bit float instead of NaN or infinity.
    pub saturate: bool,
}

impl TensorOp for Cast {
    fn infer(&self, _inputs: &[Option<&Fact>]) -> Result<Facts, OpError> {
        Err(OpError::unsupported("Cast"))
    }

    fn evaluate(&self, _inputs: &[Option<&Tensor>]) -> Result<Tensors, OpError> {
        Err(OpError::unsupported("Cast"))
    }
}
