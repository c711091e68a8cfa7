use super::common::one;
use crate::onnx::case::tensor;
use crate::onnx::{Attribute, Case, OnnxNode, Operator, Outputs};
use crate::ops::Binary;
use crate::{Builder, OpError};

/// Remainder: with the divisor's sign, or with the dividend's where `fmod` is set (ONNX Mod, opset 13).
pub static OPERATOR: Operator = Operator::new("Mod").lower(lower).cases(cases);

fn lower(node: &OnnxNode, b: &mut Builder) -> Result<Option<Outputs>, OpError> {
    let function = if node.attributes.flag_or("fmod", false)? { Binary::Fmod } else { Binary::Mod };
    one(b.binary(function, node.input(0)?, node.input(1)?)?)
}

fn cases() -> Vec<Case> {
    let case = |name| {
        let (a, b) = (tensor(&[4], &[-7i32, 7, -7, 7]), tensor(&[4], &[3i32, -3, -3, 3]));
        Case::new(name, &OPERATOR, 13).input(a).input(b)
    };
    vec![
        case("divisor's sign").output(tensor(&[4], &[2i32, -2, -1, 1])),
        case("dividend's sign").attribute("fmod", Attribute::Int(1)).output(tensor(&[4], &[-1i32, 1, -1, 1])),
    ]
}
