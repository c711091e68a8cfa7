use super::common::{evaluate_by_lowering, one, per_channel};
use super::conv_integer::lower_conv;
use crate::onnx::case::tensor;
use crate::onnx::{Case, OnnxNode, Operator, Outputs};
use crate::ops::{Expr, Op, Quantize};
use crate::{Builder, OpError};
use halimede_tensor::DType;

/// Convolution of quantized integers, quantized again (ONNX QLinearConv, opset 10).
pub static OPERATOR: Operator = Operator::new("QLinearConv").lower(lower).evaluate(evaluate_by_lowering).cases(cases);

/// Lowers a node whose inputs are x, its scale and zero point, the weights with theirs, the scale and
/// zero point of the result, and optionally a bias of scale `x_scale · w_scale`.
pub fn lower(node: &OnnxNode, b: &mut Builder) -> Result<Option<Outputs>, OpError> {
    let (x, x_scale, x_zero) = (node.input(0)?, node.input(1)?, node.input(2)?);
    let (weights, w_scale, w_zero) = (node.input(3)?, node.input(4)?, node.input(5)?);
    let (y_scale, y_zero) = (node.input(6)?, node.input(7)?);
    let sums = lower_conv(node, b, x, Some(x_zero), weights, Some(w_zero), node.optional(8))?;
    let (Some(sums), Some(rank)) = (sums, b.rank(weights)) else { return Ok(None) };
    let w_scale = per_channel(b, w_scale, rank)?;
    let scaled = Expr::input(0).cast(DType::F32) * (Expr::input(1) * Expr::input(2));
    let result = b.map(&scaled, &[sums, x_scale, w_scale])?;
    let quantize = Quantize { to: b.dtype(y_zero)?, axis: 0, block: 0, saturate: true, precision: None };
    one(b.add(Op::Quantize(quantize), &[result, y_scale, y_zero])?)
}

fn cases() -> Vec<Case> {
    let case = Case::new("a scale per output channel", &OPERATOR, 10)
        .input(tensor(&[1, 1, 2], &[4u8, 2]))
        .input(tensor(&[], &[0.5f32]))
        .input(tensor(&[], &[2u8]))
        .input(tensor(&[2, 1, 1], &[3i8, -3]))
        .input(tensor(&[2], &[1f32, 2.0]))
        .input(tensor(&[2], &[0i8, 0]))
        .input(tensor(&[], &[0.5f32]))
        .input(tensor(&[], &[100u8]))
        .input(tensor(&[2], &[2i32, 1]));
    // Sums 6 + 2 and 0 + 2 of scale 0.5, then -6 + 1 and 0 + 1 of scale 1.
    vec![case.output(tensor(&[1, 2, 2], &[108u8, 102, 90, 102]))]
}
