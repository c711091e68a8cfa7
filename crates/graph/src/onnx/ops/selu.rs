use super::common::one;
use crate::onnx::case::tensor;
use crate::onnx::{Case, OnnxNode, Operator, Outputs};
use crate::ops::Expr;
use crate::{Builder, OpError};

/// `γα(eˣ - 1)` below zero, `γx` above (ONNX Selu, opset 22).
pub static OPERATOR: Operator = Operator::new("Selu").lower(lower).cases(cases);

fn lower(node: &OnnxNode, b: &mut Builder) -> Result<Option<Outputs>, OpError> {
    let alpha = node.attributes.float_or("alpha", 1.673_263_2)?;
    let gamma = node.attributes.float_or("gamma", 1.050_701)?;
    let x = Expr::input(0);
    let formula = x.greater(0.0).select(x.clone(), x.exp() * alpha - alpha) * gamma;
    one(b.map(&formula, &[node.input(0)?])?)
}

fn cases() -> Vec<Case> {
    let (x, y) = (
        tensor(&[5], &[-2.0f32, -0.25, 0.0, 0.75, 3.5]),
        tensor(&[5], &[-1.5201665f32, -0.3888902, 0.0, 0.78802574, 3.6774535]),
    );
    vec![Case::new("defaults", &OPERATOR, 22).input(x).output(y)]
}
