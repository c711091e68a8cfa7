use super::common::one;
use crate::onnx::case::tensor;
use crate::onnx::{Case, OnnxNode, Operator, Outputs};
use crate::ops::ReduceKind;
use crate::{Builder, OpError};

/// The number of elements of a tensor (ONNX Size, opset 25).
pub static OPERATOR: Operator = Operator::new("Size").lower(lower).cases(cases);

fn lower(node: &OnnxNode, b: &mut Builder) -> Result<Option<Outputs>, OpError> {
    let dims = b.shape_of(node.input(0)?)?;
    one(b.reduce(ReduceKind::Product, dims, [0], false)?)
}

fn cases() -> Vec<Case> {
    vec![
        Case::new("of a matrix", &OPERATOR, 13).input(tensor(&[2, 3], &[0u8; 6])).output(tensor(&[], &[6i64])),
        Case::new("of a scalar", &OPERATOR, 13).input(tensor(&[], &[0u8])).output(tensor(&[], &[1i64])),
    ]
}
