use super::{Size, dtype_attribute, one};
use crate::onnx::{OnnxNode, Outputs};
use crate::ops::{Expr, Unary};
use crate::{Builder, OpError};
use halimede_tensor::DType;

/// Lowers a window `Σ coefficients[k] · cos(2πk·n/N)` over `n` below the size that input 0 gives, with
/// `N` the size, or one less where the window is symmetric (`periodic` 0).
pub fn lower_cosine_window(node: &OnnxNode, b: &mut Builder, coefficients: &[f64]) -> Result<Option<Outputs>, OpError> {
    let dtype = dtype_attribute(&node.attributes, "output_datatype")?.unwrap_or(DType::F32);
    let precision = if dtype == DType::F64 { DType::F64 } else { DType::F32 };
    let input = node.input(0)?;
    let size = Size::from_input(b, input)?;
    let places = size.positions(b)?;
    let places = b.cast(places, precision)?;
    let period = size.scalar(b)?;
    let period = b.cast(period, precision)?;
    let period_number =
        if node.attributes.flag_or("periodic", true)? { Expr::input(1) } else { (Expr::input(1) - 1.0).max(1.0) };
    let turn = Expr::input(0) * std::f64::consts::TAU / period_number;
    let wave = |order: usize| (turn.clone() * order as f64).apply(Unary::Cos);
    let term = |sum: Expr, order: usize| sum + wave(order) * coefficients[order];
    let window = (1..coefficients.len()).fold(Expr::number(coefficients[0]), term);
    let window = b.map(&window, &[places, period])?;
    one(b.cast(window, dtype)?)
}
