use super::common::one;
use crate::onnx::case::tensor;
use crate::onnx::{Case, OnnxNode, Operator, Outputs};
use crate::ops::{Expr, Unary};
use crate::{Builder, OpError};

/// Gaussian error linear unit, by erf or by tanh (ONNX Gelu, opset 20).
pub static OPERATOR: Operator = Operator::new("Gelu").lower(lower).cases(cases);

fn lower(node: &OnnxNode, b: &mut Builder) -> Result<Option<Outputs>, OpError> {
    let function = match node.attributes.text_or("approximate", "none")? {
        "none" => Unary::GeluErf,
        "tanh" => Unary::GeluTanh,
        other => return Err(OpError::invalid(format!("approximate is '{other}'; it must be none or tanh"))),
    };
    let formula = Expr::input(0).apply(function);
    one(b.map(&formula, &[node.input(0)?])?)
}

fn cases() -> Vec<Case> {
    let (x, y) = (
        tensor(&[5], &[-2.0f32, -0.25, 0.0, 0.75, 3.5]),
        tensor(&[5], &[-0.045500264f32, -0.10032342, 0.0, 0.5800295, 3.4991858]),
    );
    vec![Case::new("defaults", &OPERATOR, 20).input(x).output(y)]
}
