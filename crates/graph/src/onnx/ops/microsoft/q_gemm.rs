use super::quantized::quantized;
use crate::onnx::case::tensor;
use crate::onnx::ops::common::{centred, one};
use crate::onnx::{Attribute, Case, OnnxNode, Operator, Outputs};
use crate::ops::{Binary, Contract, Expr, Labels, Op};
use crate::{Builder, OpError};
use halimede_tensor::DType;
use smallvec::smallvec;

/// `α A B + C` of quantized matrices, quantized or, without a scale for the result, in f32 (ONNX Runtime
/// QGemm). C is i32 of scale `α · a_scale · b_scale`.
pub static OPERATOR: Operator = Operator::in_domain("com.microsoft", "QGemm").lower(lower).cases(cases);

fn lower(node: &OnnxNode, b: &mut Builder) -> Result<Option<Outputs>, OpError> {
    let alpha = node.attributes.float_or("alpha", 1.0)?;
    let lhs: Labels = if node.attributes.flag_or("transA", false)? { smallvec![2, 0] } else { smallvec![0, 2] };
    let transposed = node.attributes.flag_or("transB", false)?;
    let rhs: Labels = if transposed { smallvec![1, 2] } else { smallvec![2, 1] };
    let mut b_zero = node.optional(5);
    // A zero point per column stands along the rows of a transposed matrix.
    if let Some(zero) = b_zero
        && transposed
        && b.rank(zero) == Some(1)
    {
        b_zero = Some(b.reshape(zero, &[-1, 1])?);
    }
    let (a, c) = (centred(b, node.input(0)?, node.optional(2))?, centred(b, node.input(3)?, b_zero)?);
    let mut sums = b.add(Op::Contract(Contract::new(lhs, rhs, smallvec![0, 1])), &[a, c])?;
    if let Some(bias) = node.optional(6) {
        sums = b.binary(Binary::Add, sums, bias)?;
    }
    let scaled = Expr::input(0).cast(DType::F32)
        * (Expr::input(1) * Expr::input(2) * Expr::scalar(crate::ops::Scalar::Float(alpha.into(), DType::F32)));
    let result = b.map(&scaled, &[sums, node.input(1)?, node.input(4)?])?;
    match node.optional(7) {
        Some(_) => one(quantized(node, b, result, 7, node.input(0)?)?),
        None => one(result),
    }
}

fn cases() -> Vec<Case> {
    vec![
        Case::new("quantized result", &OPERATOR, 1)
            .attribute("transB", Attribute::Int(1))
            .input(tensor(&[2, 3], &[23u8, 62, 137, 185, 129, 156]))
            .input(tensor(&[], &[0.02f32]))
            .input(tensor(&[], &[120u8]))
            .input(tensor(&[2, 3], &[94i8, 46, -36, 36, 24, -101]))
            .input(tensor(&[], &[0.01f32]))
            .input(tensor(&[], &[0i8]))
            .input(tensor(&[2], &[100i32, -200]))
            .input(tensor(&[], &[0.05f32]))
            .input(tensor(&[], &[128u8]))
            .output(tensor(&[2, 2], &[79u8, 101, 149, 123])),
        Case::new("a float result, a scale per column", &OPERATOR, 1)
            .attribute("alpha", Attribute::Float(0.5))
            .input(tensor(&[2, 3], &[15u8, 168, 98, 152, 82, 57]))
            .input(tensor(&[], &[0.02f32]))
            .input(tensor(&[], &[120u8]))
            .input(tensor(&[3, 2], &[-90i8, -31, 80, -26, -32, 18]))
            .input(tensor(&[2], &[0.01f32, 0.02]))
            .input(tensor(&[2], &[0i8, 0]))
            .input(tensor(&[2], &[100i32, -200]))
            .output(tensor(&[2, 2], &[1.4094f32, 0.28219998, -0.3804, -0.2676])),
    ]
}
