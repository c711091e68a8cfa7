use super::common::{evaluate_by_lowering, one, spatial_rank};
use crate::onnx::case::tensor;
use crate::onnx::{Attribute, Case, OnnxNode, Operator, Outputs};
use crate::ops::{Binary, Expr, ReduceKind, Unary};
use crate::{Builder, OpError};

/// The p-norm of each channel over all spatial axes (ONNX GlobalLpPool, opset 22).
pub static OPERATOR: Operator = Operator::new("GlobalLpPool").lower(lower).evaluate(evaluate_by_lowering).cases(cases);

fn lower(node: &OnnxNode, b: &mut Builder) -> Result<Option<Outputs>, OpError> {
    let x = node.input(0)?;
    let Some(spatial) = spatial_rank(b, x)? else { return Ok(None) };
    let axes = 2..2 + spatial;
    match node.attributes.int_or("p", 2)? {
        1 => one(b.reduce(ReduceKind::L1, x, axes, true)?),
        2 => one(b.reduce(ReduceKind::L2, x, axes, true)?),
        p => {
            let power = |x: Expr, p: f64| x.with(Binary::Pow, p);
            let powers = b.map(&power(Expr::input(0).apply(Unary::Abs), p as f64), &[x])?;
            let sum = b.reduce(ReduceKind::Sum, powers, axes, true)?;
            one(b.map(&power(Expr::input(0), 1.0 / p as f64), &[sum])?)
        }
    }
}

fn cases() -> Vec<Case> {
    let case = |name| Case::new(name, &OPERATOR, 22).input(tensor(&[1, 1, 2], &[3f32, -4.0]));
    vec![
        case("root of squares").output(tensor(&[1, 1, 1], &[5f32])),
        case("third root of cubes").attribute("p", Attribute::Int(3)).output(tensor(&[1, 1, 1], &[4.497_941_4f32])),
    ]
}
