use crate::onnx::case::tensor;
use crate::onnx::ops::common::one;
use crate::onnx::{Case, OnnxNode, Operator, Outputs};
use crate::ops::Unary;
use crate::{Builder, OpError};

/// Gaussian error linear unit by erf (ONNX Runtime Gelu).
pub static OPERATOR: Operator = Operator::in_domain("com.microsoft", "Gelu").lower(lower).cases(cases);

fn lower(node: &OnnxNode, b: &mut Builder) -> Result<Option<Outputs>, OpError> {
    one(b.unary(Unary::GeluErf, node.input(0)?)?)
}

fn cases() -> Vec<Case> {
    vec![
        Case::new("values", &OPERATOR, 1)
            .input(tensor(&[5], &[-2.0f32, -0.5, 0.0, 1.0, 3.0]))
            .output(tensor(&[5], &[-0.04550028f32, -0.15426877, 0.0, 0.8413447, 2.9959502])),
    ]
}
