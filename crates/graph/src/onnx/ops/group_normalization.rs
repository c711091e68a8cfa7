use super::common::{evaluate_by_lowering, one};
use crate::onnx::case::tensor;
use crate::onnx::{Attribute, Case, OnnxNode, Operator, Outputs};
use crate::ops::{Norm, NormKind, Op};
use crate::{Builder, OpError};

/// Normalisation over groups of channels (ONNX GroupNormalization, opset 21: scale and bias per
/// channel; opset 18: per group).
pub static OPERATOR: Operator =
    Operator::new("GroupNormalization").lower(lower).evaluate(evaluate_by_lowering).cases(cases);

fn lower(node: &OnnxNode, b: &mut Builder) -> Result<Option<Outputs>, OpError> {
    let groups = node.attributes.required("num_groups", node.attributes.int("num_groups")?)?;
    let Some(size) = usize::try_from(groups).ok().filter(|&groups| groups > 0) else {
        return Err(OpError::invalid(format!("num_groups is {groups}; it must be positive")));
    };
    let epsilon = node.attributes.float_or("epsilon", 1e-5)?;
    let (x, scale, bias) = (node.input(0)?, node.input(1)?, node.input(2)?);
    if node.opset >= 21 {
        let norm = Norm { kind: NormKind::Group { groups: size }, epsilon, epilogue: None, quantize: None };
        return one(b.add(Op::Norm(norm), &[x, scale, bias])?);
    }
    // With each group as a channel of its own, a scale per group is a scale per channel.
    let grouped = b.reshape(x, &[0, groups, -1])?;
    let norm = Norm { kind: NormKind::Instance, epsilon, epilogue: None, quantize: None };
    let y = b.add(Op::Norm(norm), &[grouped, scale, bias])?;
    let shape = b.shape_of(x)?;
    one(b.reshape_to(y, shape)?)
}

fn cases() -> Vec<Case> {
    let case = |name, opset| {
        Case::new(name, &OPERATOR, opset)
            .attribute("num_groups", Attribute::Int(1))
            .attribute("epsilon", Attribute::Float(0.0))
            .input(tensor(&[1, 2, 2], &[1f32, 1.0, 3.0, 3.0]))
    };
    vec![
        case("scale per channel", 21)
            .input(tensor(&[2], &[1f32, 2.0]))
            .input(tensor(&[2], &[0f32, 1.0]))
            .output(tensor(&[1, 2, 2], &[-1f32, -1.0, 3.0, 3.0])),
        case("scale per group", 18)
            .input(tensor(&[1], &[2f32]))
            .input(tensor(&[1], &[1f32]))
            .output(tensor(&[1, 2, 2], &[-1f32, -1.0, 3.0, 3.0])),
    ]
}
