use super::common::{axis_or, evaluate_by_lowering, one};
use crate::onnx::case::tensor;
use crate::onnx::{Attribute, Case, OnnxNode, Operator, Outputs};
use crate::ops::{Norm, NormKind, Op};
use crate::{Builder, OpError};

/// Division by the root mean square over the last axes (ONNX RMSNormalization, opset 23).
pub static OPERATOR: Operator =
    Operator::new("RMSNormalization").lower(lower).evaluate(evaluate_by_lowering).cases(cases);

fn lower(node: &OnnxNode, b: &mut Builder) -> Result<Option<Outputs>, OpError> {
    let (x, scale) = (node.input(0)?, node.input(1)?);
    let Some(rank) = b.rank(x) else { return Ok(None) };
    let axis = axis_or(node, -1, rank)?;
    // The result has the scale's datatype.
    let dtype = b.dtype(scale)?;
    let x = b.cast(x, dtype)?;
    let norm = Norm {
        kind: NormKind::Rms { axis },
        epsilon: node.attributes.float_or("epsilon", 1e-5)?,
        epilogue: None,
        quantize: None,
    };
    one(b.add(Op::Norm(norm), &[x, scale])?)
}

fn cases() -> Vec<Case> {
    let case = Case::new("rows", &OPERATOR, 23)
        .attribute("epsilon", Attribute::Float(0.0))
        .input(tensor(&[2, 2], &[1f32, 7.0, -5.0, 5.0]))
        .input(tensor(&[2], &[1f32, 2.0]));
    vec![case.output(tensor(&[2, 2], &[0.2f32, 2.8, -1.0, 2.0]))]
}
