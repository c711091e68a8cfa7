use super::common::{evaluate_by_lowering, one, resolve_axis};
use crate::onnx::case::tensor;
use crate::onnx::{Attribute, Case, OnnxNode, Operator, Outputs};
use crate::ops::{Expr, ReduceKind, Unary};
use crate::{Builder, OpError};

/// `(x - mean) / (deviation + 1e-9)` over axes (ONNX MeanVarianceNormalization, opset 13).
pub static OPERATOR: Operator =
    Operator::new("MeanVarianceNormalization").lower(lower).evaluate(evaluate_by_lowering).cases(cases);

fn lower(node: &OnnxNode, b: &mut Builder) -> Result<Option<Outputs>, OpError> {
    let x = node.input(0)?;
    let Some(rank) = b.rank(x) else { return Ok(None) };
    let axes = node.attributes.ints("axes")?.unwrap_or(&[0, 2, 3]);
    let mut axes: Vec<usize> = axes.iter().map(|&axis| resolve_axis(axis, rank)).collect::<Result<_, _>>()?;
    axes.sort_unstable();
    axes.dedup();
    let mean = b.reduce(ReduceKind::Mean, x, axes.iter().copied(), true)?;
    let deviation = Expr::input(0) - Expr::input(1);
    let squares = b.map(&(deviation.clone() * deviation.clone()), &[x, mean])?;
    let variance = b.reduce(ReduceKind::Mean, squares, axes, true)?;
    one(b.map(&(deviation / (Expr::input(2).apply(Unary::Sqrt) + 1e-9)), &[x, mean, variance])?)
}

fn cases() -> Vec<Case> {
    let case = Case::new("one axis", &OPERATOR, 13)
        .attribute("axes", Attribute::Ints(vec![-1]))
        .input(tensor(&[2, 2], &[1f32, 5.0, 0.0, 1.0]));
    vec![case.output(tensor(&[2, 2], &[-1f32, 1.0, -1.0, 1.0]))]
}
