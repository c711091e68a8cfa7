use super::common::{Size, evaluate_by_lowering, one, same_dtype};
use crate::onnx::case::tensor;
use crate::onnx::{Attribute, Case, OnnxNode, Operator, Outputs};
use crate::ops::{Binary, Expr, Map, Op};
use crate::{Builder, OpError};
use halimede_tensor::Tensor;

/// The upper or lower triangle of matrices, zeros elsewhere (ONNX Trilu, opset 14).
pub static OPERATOR: Operator =
    Operator::new("Trilu").lower(lower).evaluate(evaluate_by_lowering).infer(same_dtype).cases(cases);

pub(super) fn lower(node: &OnnxNode, b: &mut Builder) -> Result<Option<Outputs>, OpError> {
    let x = node.input(0)?;
    let Some(rank) = b.rank(x) else { return Ok(None) };
    let Some(row_axis) = rank.checked_sub(2) else {
        return Err(OpError::invalid(format!("the input has {rank} dimensions; Trilu takes matrices")));
    };
    let k = match node.optional(1) {
        Some(k) => Size::from_input(b, k)?.scalar(b)?,
        None => b.constant(Tensor::scalar(0i64)),
    };
    let rows = Size::of(b, x, row_axis)?.positions(b)?;
    let rows = b.reshape(rows, &[-1, 1])?;
    let columns = Size::of(b, x, row_axis + 1)?.positions(b)?;
    let side = if node.attributes.flag_or("upper", true)? { Binary::GreaterOrEqual } else { Binary::LessOrEqual };
    let kept = (Expr::input(1) - Expr::input(0)).with(side, Expr::input(2));
    let kept = b.map(&kept, &[rows, columns, k])?;
    let map: Map = Expr::input(0).select(Expr::input(1), 0.0).map(b.dtype(x)?);
    one(b.add(Op::Map(map), &[kept, x])?)
}

fn cases() -> Vec<Case> {
    let data = tensor(&[2, 3], &[1i64, 2, 3, 4, 5, 6]);
    vec![
        Case::new("upper", &OPERATOR, 14).input(data.clone()).output(tensor(&[2, 3], &[1i64, 2, 3, 0, 5, 6])),
        Case::new("lower, one below", &OPERATOR, 14)
            .attribute("upper", Attribute::Int(0))
            .input(data)
            .input(tensor(&[], &[-1i64]))
            .output(tensor(&[2, 3], &[0i64, 0, 0, 4, 0, 0])),
    ]
}
