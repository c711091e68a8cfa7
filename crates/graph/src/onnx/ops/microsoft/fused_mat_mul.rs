use crate::onnx::case::tensor;
use crate::onnx::ops::common::{evaluate_by_lowering, matmul, one};
use crate::onnx::{Attribute, Case, OnnxNode, Operator, Outputs};
use crate::ops::Expr;
use crate::{Builder, OpError, ValueId};

/// `α A B` with either matrix transposed, or its first batch axis moved before its last (ONNX Runtime
/// FusedMatMul).
pub static OPERATOR: Operator =
    Operator::in_domain("com.microsoft", "FusedMatMul").lower(lower).evaluate(evaluate_by_lowering).cases(cases);

/// Lowers FusedMatMul and its forerunner TransposeMatMul.
pub(super) fn lower(node: &OnnxNode, b: &mut Builder) -> Result<Option<Outputs>, OpError> {
    let (x, y) = (node.input(0)?, node.input(1)?);
    let (Some(x), Some(y)) =
        (arrange(node, b, x, "transA", "transBatchA")?, arrange(node, b, y, "transB", "transBatchB")?)
    else {
        return Ok(None);
    };
    let Some(product) = matmul(b, x, y)? else { return Ok(None) };
    match node.attributes.float_or("alpha", 1.0)? {
        1.0 => one(product),
        alpha => one(b.map(&(Expr::input(0) * alpha), &[product])?),
    }
}

fn arrange(
    node: &OnnxNode,
    b: &mut Builder,
    x: ValueId,
    matrix: &str,
    batch: &str,
) -> Result<Option<ValueId>, OpError> {
    let Some(rank) = b.rank(x) else { return Ok(None) };
    let mut perm: Vec<usize> = (0..rank).collect();
    // A vector stays as it is.
    if rank >= 2 {
        if node.attributes.flag_or(batch, false)? {
            perm[..rank - 1].rotate_left(1);
        }
        if node.attributes.flag_or(matrix, false)? {
            perm.swap(rank - 2, rank - 1);
        }
    }
    b.transpose(x, &perm).map(Some)
}

fn cases() -> Vec<Case> {
    vec![
        Case::new("transposed and scaled", &OPERATOR, 1)
            .attribute("transB", Attribute::Int(1))
            .attribute("alpha", Attribute::Float(0.5))
            .input(tensor(&[2, 3], &[-1.38f32, -0.81, 1.65, -0.67, -1.05, 0.34]))
            .input(tensor(&[2, 3], &[1.41f32, -1.45, -0.21, -0.63, -1.76, 0.73]))
            .output(tensor(&[2, 2], &[-0.55889994f32, 1.74975, 0.2532, 1.2591499])),
        Case::new("batch moved", &OPERATOR, 1)
            .attribute("transBatchA", Attribute::Int(1))
            .attribute("transA", Attribute::Int(0))
            .input(tensor(&[2, 2, 2], &[-0.02f32, 0.07, -0.75, 0.45, -0.54, -0.14, -1.11, -1.22]))
            .input(tensor(&[2, 2, 2], &[1.34f32, -0.51, 0.29, -0.03, -0.44, -0.51, 0.63, -0.3]))
            .output(tensor(
                &[2, 2, 2],
                &[-0.0064999997f32, 0.008099999, -0.76420003, 0.27960002, 0.6135, 0.24749999, -0.2802, 0.9321],
            )),
    ]
}
