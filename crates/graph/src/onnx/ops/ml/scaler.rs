use super::lists::per_feature;
use crate::onnx::case::tensor;
use crate::onnx::ops::common::one;
use crate::onnx::{Attribute, Case, OnnxNode, Operator, Outputs};
use crate::ops::Expr;
use crate::{Builder, OpError};
use halimede_tensor::DType;

/// `(x - offset) · scale`, one of each per feature or for all (ai.onnx.ml Scaler, opset 1).
pub static OPERATOR: Operator = Operator::in_domain("ai.onnx.ml", "Scaler").lower(lower).cases(cases);

fn lower(node: &OnnxNode, b: &mut Builder) -> Result<Option<Outputs>, OpError> {
    let x = b.cast(node.input(0)?, DType::F32)?;
    let offset = per_feature(b, node.attributes.floats("offset")?.unwrap_or(&[0.0]))?;
    let scale = per_feature(b, node.attributes.floats("scale")?.unwrap_or(&[1.0]))?;
    one(b.map(&((Expr::input(0) - Expr::input(1)) * Expr::input(2)), &[x, offset, scale])?)
}

fn cases() -> Vec<Case> {
    vec![
        Case::new("per feature", &OPERATOR, 3)
            .attribute("offset", Attribute::Floats(vec![1.0, 2.0, 0.5]))
            .attribute("scale", Attribute::Floats(vec![2.0, 0.5, 1.0]))
            .input(tensor(&[2, 3], &[1.0f32, -2.0, 0.5, 0.0, 3.0, -1.0]))
            .output(tensor(&[2, 3], &[0.0f32, -2.0, 0.0, -2.0, 0.5, -1.5])),
        Case::new("integers, one for all", &OPERATOR, 3)
            .attribute("offset", Attribute::Floats(vec![1.0]))
            .attribute("scale", Attribute::Floats(vec![0.5]))
            .input(tensor(&[1, 2], &[1i64, 2]))
            .output(tensor(&[1, 2], &[0.0f32, 0.5])),
    ]
}
