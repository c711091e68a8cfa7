use super::activation::activation;
use crate::onnx::case::tensor;
use crate::onnx::ops::common::{conv, evaluate_by_lowering, one};
use crate::onnx::{Attribute, Case, OnnxNode, Operator, Outputs};
use crate::ops::Expr;
use crate::{Builder, OpError};
use smallvec::{SmallVec, smallvec};

/// ONNX's Conv, a tensor added to its result, and an activation (ONNX Runtime FusedConv).
pub static OPERATOR: Operator =
    Operator::in_domain("com.microsoft", "FusedConv").lower(lower).evaluate(evaluate_by_lowering).cases(cases);

fn lower(node: &OnnxNode, b: &mut Builder) -> Result<Option<Outputs>, OpError> {
    let bias = node.optional(2);
    let Some(y) = conv(node, b, node.input(0)?, node.input(1)?, bias)? else { return Ok(None) };
    let mut inputs: SmallVec<[_; 2]> = smallvec![y];
    let mut sum = Expr::input(0);
    if let Some(added) = node.optional(3) {
        sum = sum + Expr::input(1);
        inputs.push(added);
    }
    let parameters = node.attributes.floats("activation_params")?.unwrap_or_default();
    let formula = activation(node.attributes.text_or("activation", "")?, parameters, sum)?;
    one(b.map(&formula, &inputs)?)
}

fn cases() -> Vec<Case> {
    vec![
        Case::new("bias and ReLU", &OPERATOR, 1)
            .attribute("activation", Attribute::String(b"Relu".to_vec()))
            .attribute("kernel_shape", Attribute::Ints(vec![2, 2]))
            .input(tensor(&[1, 1, 3, 3], &[0.7f32, 0.52, -1.03, -0.08, 0.04, -1.05, 0.26, -0.86, 0.97]))
            .input(tensor(&[2, 1, 2, 2], &[0.19f32, 0.09, -0.59, -0.12, -2.0, -1.13, 0.36, -2.13]))
            .input(tensor(&[2], &[0.85f32, -1.75]))
            .output(tensor(&[1, 2, 2, 2], &[1.0722001f32, 0.9585, 0.7882, 1.1541, 0.0, 0.62479997, 0.29020023, 0.0])),
        Case::new("a sum and a leaky ReLU", &OPERATOR, 1)
            .attribute("activation", Attribute::String(b"LeakyRelu".to_vec()))
            .attribute("activation_params", Attribute::Floats(vec![0.1]))
            .attribute("kernel_shape", Attribute::Ints(vec![2, 2]))
            .input(tensor(&[1, 1, 2, 3], &[0.76f32, -0.85, 0.78, 0.13, -1.54, 1.25]))
            .input(tensor(&[1, 1, 2, 2], &[1.44f32, -0.07, -0.27, -0.16]))
            .input(tensor(&[1], &[-0.98f32]))
            .input(tensor(&[1, 1, 1, 2], &[1.1f32, -0.54]))
            .output(tensor(&[1, 1, 1, 2], &[1.4851999f32, -0.25828])),
    ]
}
