use super::common::one;
use crate::onnx::case::tensor;
use crate::onnx::{Case, OnnxNode, Operator, Outputs};
use crate::ops::Expr;
use crate::{Builder, OpError};

/// `x + bias` below -lambd, `x - bias` above lambd, else 0 (ONNX Shrink, opset 9).
pub static OPERATOR: Operator = Operator::new("Shrink").lower(lower).cases(cases);

fn lower(node: &OnnxNode, b: &mut Builder) -> Result<Option<Outputs>, OpError> {
    let bias = node.attributes.float_or("bias", 0.0)?;
    let lambda = node.attributes.float_or("lambd", 0.5)?;
    let x = Expr::input(0);
    let above = x.greater(lambda).select(x.clone() - bias, 0.0);
    let formula = x.less(-lambda).select(x + bias, above);
    one(b.map(&formula, &[node.input(0)?])?)
}

fn cases() -> Vec<Case> {
    let (x, y) = (tensor(&[5], &[-2.0f32, -0.25, 0.0, 0.75, 3.5]), tensor(&[5], &[-2.0f32, 0.0, 0.0, 0.75, 3.5]));
    vec![Case::new("defaults", &OPERATOR, 9).input(x).output(y)]
}
