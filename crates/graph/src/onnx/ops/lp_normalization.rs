use super::common::{axis_or, evaluate_by_lowering, one};
use crate::onnx::case::tensor;
use crate::onnx::{Attribute, Case, OnnxNode, Operator, Outputs};
use crate::ops::{Binary, Expr, ReduceKind};
use crate::{Builder, OpError};

/// Division by the 1- or 2-norm along an axis; zeros stay zeros (ONNX LpNormalization, opset 22).
pub static OPERATOR: Operator =
    Operator::new("LpNormalization").lower(lower).evaluate(evaluate_by_lowering).cases(cases);

fn lower(node: &OnnxNode, b: &mut Builder) -> Result<Option<Outputs>, OpError> {
    let x = node.input(0)?;
    let Some(rank) = b.rank(x) else { return Ok(None) };
    let axis = axis_or(node, -1, rank)?;
    let kind = match node.attributes.int_or("p", 2)? {
        1 => ReduceKind::L1,
        2 => ReduceKind::L2,
        p => return Err(OpError::invalid(format!("p is {p}; LpNormalization knows 1 and 2"))),
    };
    let norm = b.reduce(kind, x, [axis], true)?;
    let (x_term, norm_term) = (Expr::input(0), Expr::input(1));
    let formula = norm_term.with(Binary::Equal, 0.0).select(0.0, x_term / norm_term);
    one(b.map(&formula, &[x, norm])?)
}

fn cases() -> Vec<Case> {
    let case = |name| Case::new(name, &OPERATOR, 22).input(tensor(&[2, 2], &[3f32, -4.0, 0.0, 0.0]));
    vec![
        case("root of squares").output(tensor(&[2, 2], &[0.6f32, -0.8, 0.0, 0.0])),
        case("magnitudes")
            .attribute("p", Attribute::Int(1))
            .output(tensor(&[2, 2], &[3.0 / 7.0, -4.0f32 / 7.0, 0.0, 0.0])),
    ]
}
