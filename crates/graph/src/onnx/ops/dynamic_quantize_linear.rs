use super::common::evaluate_by_lowering;
use crate::onnx::case::tensor;
use crate::onnx::{Case, OnnxNode, Operator, Outputs};
use crate::ops::{Binary, Expr, Op, Quantize, ReduceKind, Unary};
use crate::{Builder, OpError, ValueId};
use halimede_tensor::DType;

/// Quantization to u8 by the range of the data itself (ONNX DynamicQuantizeLinear, opset 11).
pub static OPERATOR: Operator =
    Operator::new("DynamicQuantizeLinear").lower(lower).evaluate(evaluate_by_lowering).cases(cases);

fn lower(node: &OnnxNode, b: &mut Builder) -> Result<Option<Outputs>, OpError> {
    Ok(lower_dynamic(b, node.input(0)?)?.map(|outputs| outputs.into_iter().collect()))
}

/// The quantized value, its scale and its zero point; `None` where the rank is not known.
pub fn lower_dynamic(b: &mut Builder, x: ValueId) -> Result<Option<[ValueId; 3]>, OpError> {
    let Some(rank) = b.rank(x) else { return Ok(None) };
    let low = b.reduce(ReduceKind::Min, x, 0..rank, false)?;
    let high = b.reduce(ReduceKind::Max, x, 0..rank, false)?;
    // The range always holds 0, so that 0 is exact.
    let (low_term, high_term) = (Expr::input(0).min(0.0), Expr::input(1).max(0.0));
    let scale = b.map(&((high_term - low_term.clone()) / 255.0), &[low, high])?;
    // A tensor of zeros has scale 0; any divisor will do for it.
    let divisor = Expr::input(1).with(Binary::Equal, 0.0).select(1.0, Expr::input(1));
    let zero_point = (Expr::number(0.0) - low_term / divisor).max(0.0).min(255.0).apply(Unary::Round).cast(DType::U8);
    let zero_point = b.map(&zero_point, &[low, scale])?;
    let quantize = Quantize { to: DType::U8, axis: 0, block: 0, saturate: true, precision: None };
    let y = b.add(Op::Quantize(quantize), &[x, scale, zero_point])?;
    Ok(Some([y, scale, zero_point]))
}

fn cases() -> Vec<Case> {
    vec![
        Case::new("both signs", &OPERATOR, 11)
            .input(tensor(&[6], &[0f32, 2.0, -3.0, -2.5, 1.34, 0.5]))
            .output(tensor(&[6], &[153u8, 255, 0, 26, 221, 179]))
            .output(tensor(&[], &[0.019_607_844f32]))
            .output(tensor(&[], &[153u8])),
        Case::new("only positive", &OPERATOR, 11)
            .input(tensor(&[2], &[1f32, 5.1]))
            .output(tensor(&[2], &[50u8, 255]))
            .output(tensor(&[], &[0.02f32]))
            .output(tensor(&[], &[0u8])),
    ]
}
