use super::common::{dtype_attribute, one};
use crate::onnx::case::{strings, tensor};
use crate::onnx::{Attribute, Case, OnnxNode, Operator, Outputs};
use crate::ops::{self, Op};
use crate::{Builder, OpError};
use halimede_tensor::{DType, ExponentRounding};

/// Another datatype: numbers, Bool, strings and floats of 8 and 4 bits (ONNX Cast, opset 25).
pub static OPERATOR: Operator = Operator::new("Cast").lower(lower).cases(cases);

fn lower(node: &OnnxNode, b: &mut Builder) -> Result<Option<Outputs>, OpError> {
    let to = node.attributes.required("to", dtype_attribute(&node.attributes, "to")?)?;
    lower_to(node, b, to)
}

/// A cast to a datatype that is known.
pub fn lower_to(node: &OnnxNode, b: &mut Builder, to: DType) -> Result<Option<Outputs>, OpError> {
    let exponent_rounding = match node.attributes.text_or("round_mode", "up")? {
        "up" => ExponentRounding::Up,
        "down" => ExponentRounding::Down,
        "nearest" => ExponentRounding::Nearest,
        other => return Err(OpError::invalid(format!("round_mode is '{other}'; it must be up, down or nearest"))),
    };
    let saturate = node.attributes.flag_or("saturate", true)?;
    one(b.add(Op::Cast(ops::Cast { to, saturate, exponent_rounding }), &[node.input(0)?])?)
}

fn cases() -> Vec<Case> {
    let case = |name, to| Case::new(name, &OPERATOR, 21).attribute("to", Attribute::Int(to));
    vec![
        case("floats truncate", 6).input(tensor(&[3], &[1.9f32, -1.9, 0.0])).output(tensor(&[3], &[1i32, -1, 0])),
        case("integers wrap", 3).input(tensor(&[1], &[200i16])).output(tensor(&[1], &[-56i8])),
        case("strings", 1)
            .input(strings(&[3], &["1.5", "-2e3", "inf"]))
            .output(tensor(&[3], &[1.5f32, -2000.0, f32::INFINITY])),
    ]
}
