use crate::onnx::case::tensor;
use crate::onnx::ops::common::{evaluate_by_lowering, one};
use crate::onnx::{Attribute, Case, OnnxNode, Operator, Outputs};
use crate::ops::{Concat, Op};
use crate::{Builder, OpError};
use halimede_tensor::DType;

/// Features of several inputs as one row of f32 each (ai.onnx.ml FeatureVectorizer, opset 1).
pub static OPERATOR: Operator =
    Operator::in_domain("ai.onnx.ml", "FeatureVectorizer").lower(lower).evaluate(evaluate_by_lowering).cases(cases);

fn lower(node: &OnnxNode, b: &mut Builder) -> Result<Option<Outputs>, OpError> {
    let mut parts = Vec::with_capacity(node.inputs.len());
    for index in 0..node.inputs.len() {
        let x = b.cast(node.input(index)?, DType::F32)?;
        match b.rank(x) {
            None => return Ok(None),
            Some(0 | 1) => parts.push(b.reshape(x, &[1, -1])?),
            Some(_) => parts.push(b.reshape(x, &[0, -1])?),
        }
    }
    one(b.add(Op::Concat(Concat { axis: 1 }), &parts)?)
}

fn cases() -> Vec<Case> {
    vec![
        Case::new("two inputs", &OPERATOR, 3)
            .attribute("inputdimensions", Attribute::Ints(vec![3, 1]))
            .input(tensor(&[2, 3], &[1.0f32, -2.0, 0.5, 0.0, 3.0, -1.0]))
            .input(tensor(&[2, 1], &[9.0f32, 8.0]))
            .output(tensor(&[2, 4], &[1.0f32, -2.0, 0.5, 9.0, 0.0, 3.0, -1.0, 8.0])),
    ]
}
