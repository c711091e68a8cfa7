use super::Map;
use super::{Facts, TensorOp, Tensors};
use crate::{Fact, OpError};
use halimede_tensor::Tensor;
use smallvec::SmallVec;

/// The axes of an operand, each named by a label.
pub type Labels = SmallVec<[u8; 6]>;

/// Sum of products over shared axes: matrix products of any transposition and batching, 1x1
/// convolutions, general two-operand einsum.
///
/// Inputs: left, right, then what the epilogue reads. A label that stands in both operands and in
/// `out` is a batch axis, one in both but not in `out` is summed over; a label in one operand only
/// that is missing from `out` is summed over too. Where the sizes of a shared label differ, one of
/// them is 1 and broadcasts. No label repeats within an operand. The output has the left operand's
/// datatype; 16-bit floats accumulate in f32, integers wrap.
#[derive(Debug, Clone, PartialEq)]
pub struct Contract {
    /// Axes of the left operand.
    pub lhs: Labels,
    /// Axes of the right operand.
    pub rhs: Labels,
    /// Axes of the output, each found in an operand.
    pub out: Labels,
    /// Pointwise work on each result; its input 0 is the result, the others broadcast to it.
    pub epilogue: Option<Map>,
}

impl Contract {
    /// The product of matrices with `batch` shared leading axes: `[.., M, K] x [.., K, N]`.
    pub fn matmul(batch: usize) -> Contract {
        let leading: Labels = (0..batch as u8).collect();
        let with = |a, b| leading.iter().copied().chain([a, b]).collect();
        let (m, n, k) = (batch as u8, batch as u8 + 1, batch as u8 + 2);
        Contract { lhs: with(m, k), rhs: with(k, n), out: with(m, n), epilogue: None }
    }
}

impl TensorOp for Contract {
    fn infer(&self, _inputs: &[Option<&Fact>]) -> Result<Facts, OpError> {
        Err(OpError::unsupported("Contract"))
    }

    fn evaluate(&self, _inputs: &[Option<&Tensor>]) -> Result<Tensors, OpError> {
        Err(OpError::unsupported("Contract"))
    }
}
