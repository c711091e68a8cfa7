use super::common::{centred, evaluate_by_lowering, integer_matmul, matmul};
use crate::onnx::case::tensor;
use crate::onnx::{Case, OnnxNode, Operator, Outputs};
use crate::{Builder, OpError, ValueId};
use smallvec::smallvec;

/// Product of 8-bit integer matrices, their zero points subtracted, in i32 (ONNX MatMulInteger,
/// opset 10).
pub static OPERATOR: Operator = Operator::new("MatMulInteger").lower(lower).evaluate(evaluate_by_lowering).cases(cases);

fn lower(node: &OnnxNode, b: &mut Builder) -> Result<Option<Outputs>, OpError> {
    let product = lower_product(b, node.input(0)?, node.optional(2), node.input(1)?, node.optional(3))?;
    Ok(product.map(|y| smallvec![y]))
}

/// The i32 product of two integer matrices; the left zero point counts rows, the right one columns.
pub fn lower_product(
    b: &mut Builder,
    x: ValueId,
    x_zero_point: Option<ValueId>,
    y: ValueId,
    y_zero_point: Option<ValueId>,
) -> Result<Option<ValueId>, OpError> {
    if let Some(product) = integer_matmul(b, (x, x_zero_point), (y, y_zero_point))? {
        return Ok(Some(product));
    }
    let x_zero_point = match x_zero_point {
        Some(zero_point) => match b.rank(zero_point) {
            None => return Ok(None),
            Some(1) => Some(b.reshape(zero_point, &[-1, 1])?),
            Some(_) => Some(zero_point),
        },
        None => None,
    };
    let (x, y) = (centred(b, x, x_zero_point)?, centred(b, y, y_zero_point)?);
    matmul(b, x, y)
}

fn cases() -> Vec<Case> {
    let case = |name| {
        let (a, b) = (tensor(&[2, 2], &[11u8, 7, 3, 10]), tensor(&[2, 2], &[1i8, -4, 2, 5]));
        Case::new(name, &OPERATOR, 10).input(a).input(b)
    };
    vec![
        case("no zero points").output(tensor(&[2, 2], &[25i32, -9, 23, 38])),
        case("a zero point per row")
            .input(tensor(&[2], &[12u8, 3]))
            .input(tensor(&[1], &[1i8]))
            .output(tensor(&[2, 2], &[-5i32, -15, 7, 28])),
    ]
}
