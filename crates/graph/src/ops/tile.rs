use super::{Facts, TensorOp, Tensors};
use crate::{Fact, OpError};
use halimede_tensor::Tensor;

/// Repeats along every axis (ONNX Tile). Inputs: data, repeats (i64).
#[derive(Debug, Clone, PartialEq)]
pub struct Tile;

impl TensorOp for Tile {
    fn infer(&self, _inputs: &[Option<&Fact>]) -> Result<Facts, OpError> {
        Err(OpError::unsupported("Tile"))
    }

    fn evaluate(&self, _inputs: &[Option<&Tensor>]) -> Result<Tensors, OpError> {
        Err(OpError::unsupported("Tile"))
    }
}
