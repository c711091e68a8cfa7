use crate::onnx::case::tensor;
use crate::onnx::ops::common::{evaluate_by_lowering, fold};
use crate::onnx::ops::layer_normalization::statistics;
use crate::onnx::{Attribute, Case, OnnxNode, Operator, Outputs};
use crate::ops::{Binary, Norm, NormKind, Op};
use crate::{Builder, OpError, ValueId};
use smallvec::smallvec;

/// Layer normalisation of a sum of input, skip connection and bias (ONNX Runtime
/// SkipLayerNormalization).
pub static OPERATOR: Operator = Operator::in_domain("com.microsoft", "SkipLayerNormalization")
    .lower(lower)
    .evaluate(evaluate_by_lowering)
    .cases(cases);

fn lower(node: &OnnxNode, b: &mut Builder) -> Result<Option<Outputs>, OpError> {
    let sum = skip_sum(node, b, node.optional(4))?;
    let Some(rank) = b.rank(sum).filter(|&rank| rank > 0) else { return Ok(None) };
    let epsilon = node.attributes.float_or("epsilon", 1e-12)?;
    let norm = Norm { kind: NormKind::Layer { axis: rank - 1 }, epsilon, epilogue: None, quantize: None };
    let y = b.add_with_optional(Op::Norm(norm), &[Some(sum), Some(node.input(2)?), node.optional(3)])?;
    let mut outputs: Outputs = smallvec![y];
    if node.outputs.len() > 1 {
        outputs.extend(statistics(b, sum, rank - 1..rank, epsilon)?);
        outputs.push(sum);
        outputs.truncate(node.outputs.len());
    }
    Ok(Some(outputs))
}

/// Input, skip connection and, where there is one, bias.
pub(super) fn skip_sum(node: &OnnxNode, b: &mut Builder, bias: Option<ValueId>) -> Result<ValueId, OpError> {
    let mut terms = node.clone();
    terms.inputs = [Some(node.input(0)?), Some(node.input(1)?)].into_iter().chain(bias.map(Some)).collect();
    let (sum, inputs) = fold(&terms, Binary::Add)?;
    b.map(&sum, &inputs)
}

fn cases() -> Vec<Case> {
    vec![
        Case::new("bias and sum", &OPERATOR, 1)
            .attribute("epsilon", Attribute::Float(0.00001))
            .input(tensor(&[1, 2, 4], &[0.26f32, 0.04, -0.25, 0.04, -0.86, -1.51, -0.17, -0.97]))
            .input(tensor(&[1, 2, 4], &[-1.64f32, 0.51, -0.06, 0.41, -0.99, -0.66, -1.0, -0.89]))
            .input(tensor(&[4], &[0.2f32, -0.78, 0.36, 0.34]))
            .input(tensor(&[4], &[2.03f32, -1.39, 0.89, -0.09]))
            .input(tensor(&[4], &[-0.01f32, -1.45, -0.46, 0.74]))
            .output(tensor(
                &[1, 2, 4],
                &[1.8425941f32, -1.0473367, 0.7793848, 0.48242596, 2.0719755, -0.09487009, 1.053545, 0.24872622],
            ))
            .within(1e-4, 1e-5),
    ]
}
