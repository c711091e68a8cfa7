use super::activation::activation;
use crate::onnx::case::tensor;
use crate::onnx::ops::common::one;
use crate::onnx::ops::gemm;
use crate::onnx::{Attribute, Case, OnnxNode, Operator, Outputs};
use crate::ops::Expr;
use crate::{Builder, OpError};

/// ONNX's Gemm and an activation (ONNX Runtime FusedGemm).
pub static OPERATOR: Operator = Operator::in_domain("com.microsoft", "FusedGemm").lower(lower).cases(cases);

fn lower(node: &OnnxNode, b: &mut Builder) -> Result<Option<Outputs>, OpError> {
    let Some(outputs) = gemm::lower(node, b)? else { return Ok(None) };
    let mut parameters = Vec::new();
    for name in ["activation_alpha", "activation_beta", "activation_gamma"] {
        parameters.extend(node.attributes.float(name)?);
    }
    let formula = activation(node.attributes.text_or("activation", "")?, &parameters, Expr::input(0))?;
    one(b.map(&formula, &outputs)?)
}

fn cases() -> Vec<Case> {
    vec![
        Case::new("leaky ReLU", &OPERATOR, 1)
            .attribute("activation", Attribute::String(b"LeakyRelu".to_vec()))
            .attribute("activation_alpha", Attribute::Float(0.1))
            .attribute("transB", Attribute::Int(1))
            .input(tensor(&[2, 3], &[-0.05f32, -0.79, -0.63, -1.28, 1.26, -0.15]))
            .input(tensor(&[2, 3], &[0.97f32, 0.01, -0.69, -0.33, -0.56, 0.01]))
            .input(tensor(&[2], &[-0.38f32, -0.3]))
            .output(tensor(&[2, 2], &[-0.0001700014f32, 0.15259999, -0.15055001, -0.05847])),
    ]
}
