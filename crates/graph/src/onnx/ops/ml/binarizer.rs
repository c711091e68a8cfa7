use crate::onnx::case::tensor;
use crate::onnx::ops::common::one;
use crate::onnx::{Attribute, Case, OnnxNode, Operator, Outputs};
use crate::ops::Expr;
use crate::{Builder, OpError};

/// 1 above a threshold, else 0 (ai.onnx.ml Binarizer, opset 1).
pub static OPERATOR: Operator = Operator::in_domain("ai.onnx.ml", "Binarizer").lower(lower).cases(cases);

fn lower(node: &OnnxNode, b: &mut Builder) -> Result<Option<Outputs>, OpError> {
    let threshold = node.attributes.float_or("threshold", 0.0)?;
    one(b.map(&Expr::input(0).greater(threshold).select(1.0, 0.0), &[node.input(0)?])?)
}

fn cases() -> Vec<Case> {
    vec![
        Case::new("threshold", &OPERATOR, 3)
            .attribute("threshold", Attribute::Float(0.5))
            .input(tensor(&[2, 3], &[1.0f32, -2.0, 0.5, 0.0, 3.0, -1.0]))
            .output(tensor(&[2, 3], &[1.0f32, 0.0, 0.0, 0.0, 1.0, 0.0])),
    ]
}
