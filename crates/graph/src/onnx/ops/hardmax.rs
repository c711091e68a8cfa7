use super::common::{evaluate_by_lowering, iota, lower_rows};
use crate::onnx::case::tensor;
use crate::onnx::{Case, OnnxNode, Operator, Outputs};
use crate::ops::{ArgReduce, Binary, Op};
use crate::{Builder, OpError};

/// 1 at the first largest element along an axis, 0 elsewhere (ONNX Hardmax, opset 13; below that over
/// all axes from `axis` on).
pub static OPERATOR: Operator = Operator::new("Hardmax").lower(lower).evaluate(evaluate_by_lowering).cases(cases);

fn lower(node: &OnnxNode, b: &mut Builder) -> Result<Option<Outputs>, OpError> {
    lower_rows(node, b, |b, x, axis, rank| {
        let largest = b.add(Op::ArgReduce(ArgReduce { largest: true, axis, keep_dims: true, last: false }), &[x])?;
        let positions = iota(b, x, axis, rank)?;
        let hit = b.binary(Binary::Equal, positions, largest)?;
        let dtype = b.dtype(x)?;
        b.cast(hit, dtype)
    })
}

fn cases() -> Vec<Case> {
    let x = tensor(&[2, 3], &[3f32, 0.0, 1.0, 2.0, 5.0, 5.0]);
    let y = tensor(&[2, 3], &[1f32, 0.0, 0.0, 0.0, 1.0, 0.0]);
    vec![Case::new("the first of equals", &OPERATOR, 13).input(x).output(y)]
}
