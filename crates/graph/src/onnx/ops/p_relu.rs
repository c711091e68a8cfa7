use super::common::{evaluate_by_lowering, one, per_channel};
use crate::onnx::case::tensor;
use crate::onnx::{Case, OnnxNode, Operator, Outputs};
use crate::ops::Expr;
use crate::{Builder, OpError};

/// `slope · x` below zero, x above; the slope broadcasts to x (ONNX PRelu, opset 16).
pub static OPERATOR: Operator = Operator::new("PRelu").lower(lower).evaluate(evaluate_by_lowering).cases(cases);

fn lower(node: &OnnxNode, b: &mut Builder) -> Result<Option<Outputs>, OpError> {
    let (data, mut slopes) = (node.input(0)?, node.input(1)?);
    // Below opset 7 a list of slopes counted channels.
    if node.opset < 7 && b.rank(slopes) == Some(1) {
        match b.rank(data) {
            Some(rank) if rank > 2 => slopes = per_channel(b, slopes, rank)?,
            Some(_) => {}
            None => return Ok(None),
        }
    }
    let (x, slope) = (Expr::input(0), Expr::input(1));
    one(b.map(&x.less(0.0).select(x.clone() * slope, x), &[data, slopes])?)
}

fn cases() -> Vec<Case> {
    let (x, slope) = (tensor(&[2, 2], &[-1f32, 2.0, -3.0, -4.0]), tensor(&[2], &[0.5f32, 0.25]));
    let y = tensor(&[2, 2], &[-0.5f32, 2.0, -1.5, -1.0]);
    vec![Case::new("a slope per column", &OPERATOR, 16).input(x).input(slope).output(y)]
}
