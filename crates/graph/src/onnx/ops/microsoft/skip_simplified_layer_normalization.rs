use super::simplified_layer_normalization::lower_rms;
use super::skip_layer_normalization::skip_sum;
use crate::onnx::case::tensor;
use crate::onnx::ops::common::evaluate_by_lowering;
use crate::onnx::{Attribute, Case, OnnxNode, Operator, Outputs};
use crate::{Builder, OpError};
use smallvec::smallvec;

/// Division of a sum of input, skip connection and bias by its root mean square (ONNX Runtime
/// SkipSimplifiedLayerNormalization).
pub static OPERATOR: Operator = Operator::in_domain("com.microsoft", "SkipSimplifiedLayerNormalization")
    .lower(lower)
    .evaluate(evaluate_by_lowering)
    .cases(cases);

fn lower(node: &OnnxNode, b: &mut Builder) -> Result<Option<Outputs>, OpError> {
    let sum = skip_sum(node, b, node.optional(3))?;
    let Some(rank) = b.rank(sum).filter(|&rank| rank > 0) else { return Ok(None) };
    let epsilon = node.attributes.float_or("epsilon", 1e-12)?;
    let [y, inverse] = lower_rms(b, sum, node.input(2)?, rank - 1, rank, epsilon)?;
    // The mean, the second output, is not computed; nothing reads it.
    let mut outputs: Outputs = smallvec![y, inverse, inverse, sum];
    outputs.truncate(node.outputs.len());
    Ok(Some(outputs))
}

fn cases() -> Vec<Case> {
    vec![
        Case::new("sum", &OPERATOR, 1)
            .attribute("epsilon", Attribute::Float(0.00001))
            .input(tensor(&[1, 2, 4], &[-0.08f32, 0.08, -0.29, 1.15, -0.02, -2.2, -0.69, -1.97]))
            .input(tensor(&[1, 2, 4], &[-3.25f32, -0.53, 1.33, 0.05, -1.17, -0.94, 1.13, 0.16]))
            .input(tensor(&[4], &[0.05f32, -0.05, 0.04, 0.81]))
            .output(tensor(
                &[1, 2, 4],
                &[
                    -0.08959827f32,
                    0.012107874,
                    0.022386113,
                    0.52306014,
                    -0.030989751,
                    0.08177128,
                    0.009166716,
                    -0.76359797,
                ],
            ))
            .within(1e-4, 1e-5),
    ]
}
