use crate::onnx::case::tensor;
use crate::onnx::ops::common::{axis_or, evaluate_by_lowering};
use crate::onnx::{Attribute, Case, OnnxNode, Operator, Outputs};
use crate::ops::{Expr, Norm, NormKind, Op, ReduceKind, Unary};
use crate::{Builder, OpError, ValueId};
use halimede_tensor::DType;

/// Division by the root mean square over the last axes, which ONNX Runtime puts into ONNX's own domain
/// (SimplifiedLayerNormalization).
pub static OPERATOR: Operator =
    Operator::new("SimplifiedLayerNormalization").lower(lower).evaluate(evaluate_by_lowering).cases(cases);

fn lower(node: &OnnxNode, b: &mut Builder) -> Result<Option<Outputs>, OpError> {
    let x = node.input(0)?;
    let Some(rank) = b.rank(x) else { return Ok(None) };
    let axis = axis_or(node, -1, rank)?;
    let epsilon = node.attributes.float_or("epsilon", 1e-5)?;
    let mut outputs: Outputs = lower_rms(b, x, node.input(1)?, axis, rank, epsilon)?.into_iter().collect();
    outputs.truncate(node.outputs.len());
    Ok(Some(outputs))
}

/// The normalised value and the reciprocal of the root mean square.
pub(super) fn lower_rms(
    b: &mut Builder,
    x: ValueId,
    scale: ValueId,
    axis: usize,
    rank: usize,
    epsilon: f32,
) -> Result<[ValueId; 2], OpError> {
    let y =
        b.add(Op::Norm(Norm { kind: NormKind::Rms { axis }, epsilon, epilogue: None, quantize: None }), &[x, scale])?;
    let wide = b.cast(x, DType::F32)?;
    let squares = b.map(&(Expr::input(0) * Expr::input(0)), &[wide])?;
    let mean = b.reduce(ReduceKind::Mean, squares, axis..rank, true)?;
    let inverse = (Expr::input(0) + epsilon).apply(Unary::Sqrt).apply(Unary::Reciprocal);
    Ok([y, b.map(&inverse, &[mean])?])
}

fn cases() -> Vec<Case> {
    vec![
        Case::new("rows", &OPERATOR, 1)
            .attribute("axis", Attribute::Int(-1))
            .attribute("epsilon", Attribute::Float(0.00001))
            .input(tensor(&[2, 3], &[0.55f32, 0.22, -1.04, 0.51, -0.68, 1.09]))
            .input(tensor(&[3], &[-1.27f32, -0.14, -0.01]))
            .output(tensor(&[2, 3], &[-1.0108231f32, -0.04457173, 0.015050194, -0.8116077, 0.11929143, -0.013658368]))
            .within(1e-4, 1e-5),
    ]
}
