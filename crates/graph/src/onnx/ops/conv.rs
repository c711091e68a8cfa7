use super::common::{conv, evaluate_by_lowering};
use crate::onnx::case::tensor;
use crate::onnx::{Attribute, Case, OnnxNode, Operator, Outputs};
use crate::{Builder, OpError};
use smallvec::smallvec;

/// Convolution (ONNX Conv, opset 22).
pub static OPERATOR: Operator = Operator::new("Conv").lower(lower).evaluate(evaluate_by_lowering).cases(cases);

fn lower(node: &OnnxNode, b: &mut Builder) -> Result<Option<Outputs>, OpError> {
    let bias = node.optional(2);
    Ok(conv(node, b, node.input(0)?, node.input(1)?, bias)?.map(|y| smallvec![y]))
}

fn cases() -> Vec<Case> {
    let case = |name| {
        let x = tensor(&[1, 1, 3, 3], &[0f32, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]);
        Case::new(name, &OPERATOR, 22).input(x).input(tensor(&[1, 1, 2, 2], &[1f32; 4]))
    };
    vec![
        case("no border").output(tensor(&[1, 1, 2, 2], &[8f32, 12.0, 20.0, 24.0])),
        case("bias and steps")
            .attribute("strides", Attribute::Ints(vec![2, 2]))
            .attribute("pads", Attribute::Ints(vec![1, 1, 0, 0]))
            .input(tensor(&[1], &[0.5f32]))
            .output(tensor(&[1, 1, 2, 2], &[0.5f32, 3.5, 9.5, 24.5])),
        case("as many outputs as inputs")
            .attribute("auto_pad", Attribute::String(b"SAME_UPPER".to_vec()))
            .output(tensor(&[1, 1, 3, 3], &[8f32, 12.0, 7.0, 20.0, 24.0, 13.0, 13.0, 15.0, 8.0])),
    ]
}
