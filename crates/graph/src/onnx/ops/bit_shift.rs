use super::common::one;
use crate::onnx::case::tensor;
use crate::onnx::{Attribute, Case, OnnxNode, Operator, Outputs};
use crate::ops::Binary;
use crate::{Builder, OpError};

/// Bits moved left or right (ONNX BitShift, opset 11).
pub static OPERATOR: Operator = Operator::new("BitShift").lower(lower).cases(cases);

fn lower(node: &OnnxNode, b: &mut Builder) -> Result<Option<Outputs>, OpError> {
    let direction = node.attributes.required("direction", node.attributes.text("direction")?)?;
    let function = match direction {
        "LEFT" => Binary::Shl,
        "RIGHT" => Binary::Shr,
        other => return Err(OpError::invalid(format!("direction is '{other}'; it must be LEFT or RIGHT"))),
    };
    one(b.binary(function, node.input(0)?, node.input(1)?)?)
}

fn cases() -> Vec<Case> {
    let case = |name, direction: &str| {
        let direction = Attribute::String(direction.as_bytes().to_vec());
        let (x, by) = (tensor(&[3], &[16u8, 4, 1]), tensor(&[3], &[1u8, 2, 3]));
        Case::new(name, &OPERATOR, 11).attribute("direction", direction).input(x).input(by)
    };
    vec![
        case("right", "RIGHT").output(tensor(&[3], &[8u8, 1, 0])),
        case("left", "LEFT").output(tensor(&[3], &[32u8, 16, 8])),
    ]
}
