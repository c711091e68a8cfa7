use super::common::{axis_or, evaluate_by_lowering};
use crate::onnx::case::tensor;
use crate::onnx::{Attribute, Case, OnnxNode, Operator, Outputs};
use crate::ops::{Expr, Norm, NormKind, Op, ReduceKind, Unary};
use crate::{Builder, OpError, ValueId};
use halimede_tensor::DType;
use smallvec::smallvec;

/// Normalisation over the last axes (ONNX LayerNormalization, opset 17).
pub static OPERATOR: Operator =
    Operator::new("LayerNormalization").lower(lower).evaluate(evaluate_by_lowering).cases(cases);

fn lower(node: &OnnxNode, b: &mut Builder) -> Result<Option<Outputs>, OpError> {
    let x = node.input(0)?;
    let Some(rank) = b.rank(x) else { return Ok(None) };
    let axis = axis_or(node, -1, rank)?;
    let epsilon = node.attributes.float_or("epsilon", 1e-5)?;
    let norm = Norm { kind: NormKind::Layer { axis }, epsilon, epilogue: None, quantize: None };
    let mut outputs: Outputs =
        smallvec![b.add_with_optional(Op::Norm(norm), &[Some(x), Some(node.input(1)?), node.optional(2)])?];
    if node.wants(1) || node.wants(2) {
        outputs.extend(statistics(b, x, axis..rank, epsilon)?);
        outputs.truncate(node.outputs.len());
    }
    Ok(Some(outputs))
}

/// The mean and the reciprocal of the standard deviation, in f32 or wider.
pub fn statistics(
    b: &mut Builder,
    x: ValueId,
    axes: std::ops::Range<usize>,
    epsilon: f32,
) -> Result<[ValueId; 2], OpError> {
    let x = if b.dtype(x)? == DType::F64 { x } else { b.cast(x, DType::F32)? };
    let mean = b.reduce(ReduceKind::Mean, x, axes.clone(), true)?;
    let deviation = Expr::input(0) - Expr::input(1);
    let squares = b.map(&(deviation.clone() * deviation), &[x, mean])?;
    let variance = b.reduce(ReduceKind::Mean, squares, axes, true)?;
    let inverse = (Expr::input(0) + epsilon).apply(Unary::Sqrt).apply(Unary::Reciprocal);
    Ok([mean, b.map(&inverse, &[variance])?])
}

fn cases() -> Vec<Case> {
    let case = Case::new("with statistics", &OPERATOR, 17)
        .attribute("epsilon", Attribute::Float(0.0))
        .input(tensor(&[2, 2], &[1f32, 5.0, 0.0, 1.0]))
        .input(tensor(&[2], &[1f32, 2.0]))
        .input(tensor(&[2], &[0f32, 1.0]));
    vec![
        case.output(tensor(&[2, 2], &[-1f32, 3.0, -1.0, 3.0]))
            .output(tensor(&[2, 1], &[3f32, 0.5]))
            .output(tensor(&[2, 1], &[0.5f32, 2.0])),
    ]
}
