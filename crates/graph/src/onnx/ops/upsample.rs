use super::common::{early_rounding, one, resize_mode};
use crate::onnx::case::tensor;
use crate::onnx::{Attribute, Case, OnnxNode, Operator, Outputs};
use crate::ops::{CoordinateTransform, Op, Resize};
use crate::{Builder, OpError};

/// Enlargement, the first form of Resize (ONNX Upsample, opset 9; `scales` was an attribute in 7;
/// deprecated since 10).
pub static OPERATOR: Operator = Operator::new("Upsample").lower(lower).cases(cases);

fn lower(node: &OnnxNode, b: &mut Builder) -> Result<Option<Outputs>, OpError> {
    let scales = match node.attributes.floats("scales")? {
        Some(scales) => {
            let scales = halimede_tensor::Tensor::from_slice(&[scales.len()], scales)?;
            b.constant(scales)
        }
        None => node.input(1)?,
    };
    let op = Resize::new(resize_mode(node, early_rounding(b, scales))?, CoordinateTransform::Asymmetric);
    one(b.add_with_optional(Op::Resize(op), &[Some(node.input(0)?), None, Some(scales)])?)
}

fn cases() -> Vec<Case> {
    vec![
        Case::new("scales as attribute", &OPERATOR, 7)
            .attribute("scales", Attribute::Floats(vec![1.0, 1.0, 1.0, 2.0]))
            .input(tensor(&[1, 1, 1, 2], &[1.0f32, 2.0]))
            .output(tensor(&[1, 1, 1, 4], &[1.0f32, 1.0, 2.0, 2.0])),
    ]
}
