use super::common::one;
use crate::onnx::case::tensor;
use crate::onnx::{Case, OnnxNode, Operator, Outputs};
use crate::ops::Expr;
use crate::{Builder, OpError};

/// `max(0, min(1, αx + β))` (ONNX HardSigmoid, opset 22).
pub static OPERATOR: Operator = Operator::new("HardSigmoid").lower(lower).cases(cases);

fn lower(node: &OnnxNode, b: &mut Builder) -> Result<Option<Outputs>, OpError> {
    let alpha = node.attributes.float_or("alpha", 0.2)?;
    let beta = node.attributes.float_or("beta", 0.5)?;
    let formula = (Expr::input(0) * alpha + beta).min(1.0).max(0.0);
    one(b.map(&formula, &[node.input(0)?])?)
}

fn cases() -> Vec<Case> {
    let (x, y) =
        (tensor(&[5], &[-2.0f32, -0.25, 0.0, 0.75, 3.5]), tensor(&[5], &[0.099999994f32, 0.45, 0.5, 0.65, 1.0]));
    vec![Case::new("defaults", &OPERATOR, 22).input(x).output(y)]
}
