use crate::onnx::case::tensor;
use crate::onnx::ops::common::evaluate_by_lowering;
use crate::onnx::ops::mat_mul_integer::lower_product;
use crate::onnx::{Case, OnnxNode, Operator, Outputs};
use crate::ops::{Binary, Expr};
use crate::{Builder, OpError, ValueId};
use smallvec::smallvec;

/// Product of quantized matrices in f32, with a bias (ONNX Runtime MatMulIntegerToFloat).
pub static OPERATOR: Operator = Operator::in_domain("com.microsoft", "MatMulIntegerToFloat")
    .lower(lower)
    .evaluate(evaluate_by_lowering)
    .cases(cases);

fn lower(node: &OnnxNode, b: &mut Builder) -> Result<Option<Outputs>, OpError> {
    let matrices = [node.input(0)?, node.input(1)?];
    let scales = [node.input(2)?, node.input(3)?];
    let y = lower_scaled(b, matrices, scales, [node.optional(4), node.optional(5)], node.optional(6))?;
    Ok(y.map(|y| smallvec![y]))
}

/// The integer product times both scales, plus a bias; the right scale may count columns.
pub fn lower_scaled(
    b: &mut Builder,
    [x, y]: [ValueId; 2],
    [x_scale, y_scale]: [ValueId; 2],
    [x_zero, y_zero]: [Option<ValueId>; 2],
    bias: Option<ValueId>,
) -> Result<Option<ValueId>, OpError> {
    let Some(product) = lower_product(b, x, x_zero, y, y_zero)? else { return Ok(None) };
    let dtype = b.dtype(x_scale)?;
    let scaled = Expr::input(0).cast(dtype).with(Binary::Mul, Expr::input(1) * Expr::input(2));
    match bias {
        Some(bias) => b.map(&(scaled + Expr::input(3)), &[product, x_scale, y_scale, bias]).map(Some),
        None => b.map(&scaled, &[product, x_scale, y_scale]).map(Some),
    }
}

fn cases() -> Vec<Case> {
    vec![
        Case::new("zero points and bias", &OPERATOR, 1)
            .input(tensor(&[2, 3], &[7u8, 231, 31, 106, 246, 27]))
            .input(tensor(&[3, 2], &[167u8, 185, 109, 20, 133, 110]))
            .input(tensor(&[], &[0.02f32]))
            .input(tensor(&[], &[0.01f32]))
            .input(tensor(&[], &[100u8]))
            .input(tensor(&[], &[120u8]))
            .input(tensor(&[2], &[1.0f32, -1.0]))
            .output(tensor(&[2, 2], &[-0.34179997f32, -4.691, 0.5454, -3.6959999])),
        Case::new("a scale per column", &OPERATOR, 1)
            .input(tensor(&[2, 3], &[222u8, 173, 87, 14, 150, 71]))
            .input(tensor(&[3, 2], &[46i8, 92, -38, 102, 4, 7]))
            .input(tensor(&[], &[0.02f32]))
            .input(tensor(&[2], &[0.01f32, 0.03]))
            .input(tensor(&[], &[100u8]))
            .output(tensor(&[2, 2], &[0.5572f32, 11.1474, -1.1944, -1.8089999])),
    ]
}
