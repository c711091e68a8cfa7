use super::common::one;
use crate::onnx::case::tensor;
use crate::onnx::{Attribute, Case, OnnxNode, Operator, Outputs};
use crate::ops::{Norm, NormKind, Op};
use crate::{Builder, OpError};

/// Normalisation of each channel of each instance (ONNX InstanceNormalization, opset 22).
pub static OPERATOR: Operator = Operator::new("InstanceNormalization").lower(lower).cases(cases);

fn lower(node: &OnnxNode, b: &mut Builder) -> Result<Option<Outputs>, OpError> {
    let epsilon = node.attributes.float_or("epsilon", 1e-5)?;
    let norm = Norm { kind: NormKind::Instance, epsilon, epilogue: None, quantize: None };
    one(b.add(Op::Norm(norm), &[node.input(0)?, node.input(1)?, node.input(2)?])?)
}

fn cases() -> Vec<Case> {
    let case = Case::new("two channels", &OPERATOR, 22)
        .attribute("epsilon", Attribute::Float(0.0))
        .input(tensor(&[1, 2, 2], &[1f32, 3.0, -2.0, 2.0]))
        .input(tensor(&[2], &[1f32, 2.0]))
        .input(tensor(&[2], &[0f32, 1.0]));
    vec![case.output(tensor(&[1, 2, 2], &[-1f32, 1.0, -1.0, 3.0]))]
}
