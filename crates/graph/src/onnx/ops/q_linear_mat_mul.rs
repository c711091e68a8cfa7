use super::common::{evaluate_by_lowering, matmul, one};
use super::mat_mul_integer::lower_product;
use crate::onnx::case::tensor;
use crate::onnx::{Case, OnnxNode, Operator, Outputs};
use crate::ops::{Dequantize, Expr, Op, Quantize};
use crate::{Builder, OpError, ValueId};
use halimede_tensor::DType;

/// Product of quantized matrices, quantized again (ONNX QLinearMatMul, opset 21).
pub static OPERATOR: Operator = Operator::new("QLinearMatMul").lower(lower).evaluate(evaluate_by_lowering).cases(cases);

fn lower(node: &OnnxNode, b: &mut Builder) -> Result<Option<Outputs>, OpError> {
    let [a, a_scale, a_zero, c, c_scale, c_zero, y_scale, y_zero] = inputs(node)?;
    let Some(rank) = b.rank(a) else { return Ok(None) };
    let to = b.dtype(y_zero)?;
    let product = if b.dtype(a)?.is_integer() {
        let Some(product) = lower_product(b, a, Some(a_zero), c, Some(c_zero))? else { return Ok(None) };
        // A scale per row of the left matrix stands in a column.
        let a_scale = if b.rank(a_scale) == Some(1) { b.reshape(a_scale, &[-1, 1])? } else { a_scale };
        let as_f32 = |index| Expr::input(index).cast(DType::F32);
        b.map(&(as_f32(0) * (as_f32(1) * as_f32(2))), &[product, a_scale, c_scale])?
    } else {
        let (a, c) = (dequantize(b, a, a_scale, a_zero)?, dequantize(b, c, c_scale, c_zero)?);
        let Some(product) = matmul(b, a, c)? else { return Ok(None) };
        product
    };
    // A scale per row of the result.
    let axis = if b.rank(y_scale) == Some(1) { rank.saturating_sub(2) } else { 0 };
    let y_scale = b.cast(y_scale, DType::F32)?;
    let quantize = Quantize { to, axis, block: 0, saturate: true, precision: None };
    one(b.add(Op::Quantize(quantize), &[product, y_scale, y_zero])?)
}

fn inputs(node: &OnnxNode) -> Result<[ValueId; 8], OpError> {
    let mut inputs = [ValueId(0); 8];
    for (index, input) in inputs.iter_mut().enumerate() {
        *input = node.input(index)?;
    }
    Ok(inputs)
}

fn dequantize(b: &mut Builder, x: ValueId, scale: ValueId, zero_point: ValueId) -> Result<ValueId, OpError> {
    b.add(Op::Dequantize(Dequantize { to: Some(DType::F32), axis: 0, block: 0 }), &[x, scale, zero_point])
}

fn cases() -> Vec<Case> {
    // ((10 - 8) * 0.5, (12 - 8) * 0.5) x ((3 - 1) * 0.25, (5 - 1) * 0.25) = 1 * 0.5 + 2 * 1 = 2.5
    let case = Case::new("one product", &OPERATOR, 21)
        .input(tensor(&[1, 2], &[10u8, 12]))
        .input(tensor(&[], &[0.5f32]))
        .input(tensor(&[], &[8u8]))
        .input(tensor(&[2, 1], &[3u8, 5]))
        .input(tensor(&[], &[0.25f32]))
        .input(tensor(&[], &[1u8]))
        .input(tensor(&[], &[0.5f32]))
        .input(tensor(&[], &[7u8]));
    vec![case.output(tensor(&[1, 1], &[12u8]))]
}
