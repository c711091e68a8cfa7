use crate::onnx::case::tensor;
use crate::onnx::ops::common::{evaluate_by_lowering, one};
use crate::onnx::{Attribute, Case, OnnxNode, Operator, Outputs};
use crate::ops::{Binary, Expr, ReduceKind};
use crate::{Builder, OpError};
use halimede_tensor::DType;

/// Rows divided by their largest element or by their 1- or 2-norm (ai.onnx.ml Normalizer, opset 1).
pub static OPERATOR: Operator =
    Operator::in_domain("ai.onnx.ml", "Normalizer").lower(lower).evaluate(evaluate_by_lowering).cases(cases);

fn lower(node: &OnnxNode, b: &mut Builder) -> Result<Option<Outputs>, OpError> {
    let x = b.cast(node.input(0)?, DType::F32)?;
    let Some(rank) = b.rank(x).filter(|&rank| rank > 0) else { return Ok(None) };
    let kind = match node.attributes.text_or("norm", "MAX")? {
        "MAX" => ReduceKind::Max,
        "L1" => ReduceKind::L1,
        "L2" => ReduceKind::L2,
        other => return Err(OpError::invalid(format!("norm is '{other}'; it must be MAX, L1 or L2"))),
    };
    let norm = b.reduce(kind, x, [rank - 1], true)?;
    // A row without a norm stays as it is.
    let divisor = Expr::input(1).with(Binary::Equal, 0.0).select(1.0, Expr::input(1));
    one(b.map(&(Expr::input(0) / divisor), &[x, norm])?)
}

fn cases() -> Vec<Case> {
    vec![
        Case::new("largest", &OPERATOR, 3)
            .attribute("norm", Attribute::String(b"MAX".to_vec()))
            .input(tensor(&[2, 3], &[1.0f32, -2.0, 0.5, 0.0, 3.0, -1.0]))
            .output(tensor(&[2, 3], &[1.0f32, -2.0, 0.5, 0.0, 1.0, -0.33333334])),
        Case::new("magnitudes", &OPERATOR, 3)
            .attribute("norm", Attribute::String(b"L1".to_vec()))
            .input(tensor(&[2, 3], &[1.0f32, -2.0, 0.5, 0.0, 3.0, -1.0]))
            .output(tensor(&[2, 3], &[0.2857143f32, -0.5714286, 0.14285715, 0.0, 0.75, -0.25])),
        Case::new("root of squares", &OPERATOR, 3)
            .attribute("norm", Attribute::String(b"L2".to_vec()))
            .input(tensor(&[2, 2], &[3.0f32, -4.0, 0.0, 0.0]))
            .output(tensor(&[2, 2], &[0.6f32, -0.8, 0.0, 0.0])),
    ]
}
