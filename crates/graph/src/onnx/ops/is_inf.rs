use super::common::one;
use crate::onnx::case::{bools, tensor};
use crate::onnx::{Attribute, Case, OnnxNode, Operator, Outputs};
use crate::ops::{Binary, Expr, Unary};
use crate::{Builder, OpError};

/// Whether an element is infinite, of either sign or of one (ONNX IsInf, opset 20).
pub static OPERATOR: Operator = Operator::new("IsInf").lower(lower).cases(cases);

fn lower(node: &OnnxNode, b: &mut Builder) -> Result<Option<Outputs>, OpError> {
    let x = Expr::input(0);
    let infinite = x.apply(Unary::IsInf);
    let negative = node.attributes.flag_or("detect_negative", true)?;
    let positive = node.attributes.flag_or("detect_positive", true)?;
    let formula = match (negative, positive) {
        (true, true) => infinite,
        (true, false) => infinite.with(Binary::And, x.less(0.0)),
        (false, true) => infinite.with(Binary::And, x.greater(0.0)),
        // No number is above itself.
        (false, false) => x.greater(&x),
    };
    one(b.map(&formula, &[node.input(0)?])?)
}

fn cases() -> Vec<Case> {
    let x = || tensor(&[4], &[f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 1.0]);
    let case = |name| Case::new(name, &OPERATOR, 20).input(x());
    vec![
        case("either sign").output(bools(&[4], &[false, true, true, false])),
        case("negative")
            .attribute("detect_positive", Attribute::Int(0))
            .output(bools(&[4], &[false, false, true, false])),
        case("positive")
            .attribute("detect_negative", Attribute::Int(0))
            .output(bools(&[4], &[false, true, false, false])),
    ]
}
