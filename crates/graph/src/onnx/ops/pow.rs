use super::common::one;
use crate::onnx::case::tensor;
use crate::onnx::{Case, OnnxNode, Operator, Outputs};
use crate::ops::Binary;
use crate::{Builder, OpError};
use halimede_tensor::DType;

/// A base to the power of an exponent, of the base's datatype (ONNX Pow, opset 15; from opset 12 on the
/// two datatypes may differ).
pub static OPERATOR: Operator = Operator::new("Pow").lower(lower).cases(cases);

fn lower(node: &OnnxNode, b: &mut Builder) -> Result<Option<Outputs>, OpError> {
    let (base, exponent) = (node.input(0)?, node.input(1)?);
    let (base_type, exponent_type) = (b.dtype(base)?, b.dtype(exponent)?);
    // Computed in the type that holds both, then given the base's.
    let common = match (base_type.is_float(), exponent_type.is_float()) {
        _ if base_type == exponent_type => base_type,
        (true, _) => base_type,
        (false, true) => DType::F64,
        (false, false) => DType::I64,
    };
    let (x, y) = (b.cast(base, common)?, b.cast(exponent, common)?);
    let power = b.binary(Binary::Pow, x, y)?;
    one(b.cast(power, base_type)?)
}

fn cases() -> Vec<Case> {
    let case = |name| Case::new(name, &OPERATOR, 15);
    vec![
        case("floats")
            .input(tensor(&[3], &[1f32, 2.0, 3.0]))
            .input(tensor(&[], &[2f32]))
            .output(tensor(&[3], &[1f32, 4.0, 9.0])),
        case("an integer exponent")
            .input(tensor(&[2], &[2f32, 3.0]))
            .input(tensor(&[2], &[5i64, -1]))
            .output(tensor(&[2], &[32f32, 1.0 / 3.0])),
        case("an integer base")
            .input(tensor(&[2], &[4i32, 9]))
            .input(tensor(&[2], &[0.5f32, 2.0]))
            .output(tensor(&[2], &[2i32, 81])),
    ]
}
