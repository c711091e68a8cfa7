use super::common::one;
use crate::onnx::case::tensor;
use crate::onnx::{Attribute, Case, OnnxNode, Operator, Outputs};
use crate::ops::{GatherNd, Op};
use crate::{Builder, OpError};

/// Slices by tuples of indices (ONNX GatherND, opset 13; `batch_dims` came with 12).
pub static OPERATOR: Operator = Operator::new("GatherND").lower(lower).cases(cases);

fn lower(node: &OnnxNode, b: &mut Builder) -> Result<Option<Outputs>, OpError> {
    let batch_dims = node.attributes.int_or("batch_dims", 0)?;
    let negative = || OpError::invalid(format!("batch_dims is {batch_dims}; it counts axes"));
    let batch_dims = usize::try_from(batch_dims).map_err(|_| negative())?;
    one(b.add(Op::GatherNd(GatherNd { batch_dims }), &[node.input(0)?, node.input(1)?])?)
}

fn cases() -> Vec<Case> {
    let data = tensor(&[2, 2, 2], &[0i32, 1, 2, 3, 4, 5, 6, 7]);
    vec![
        Case::new("rows by pairs", &OPERATOR, 13)
            .input(data.clone())
            .input(tensor(&[2, 2], &[0i64, 1, 1, 0]))
            .output(tensor(&[2, 2], &[2i32, 3, 4, 5])),
        Case::new("a shared batch axis", &OPERATOR, 12)
            .attribute("batch_dims", Attribute::Int(1))
            .input(data)
            .input(tensor(&[2, 1], &[1i64, 0]))
            .output(tensor(&[2, 2], &[2i32, 3, 4, 5])),
    ]
}
