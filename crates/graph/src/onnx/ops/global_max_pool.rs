use super::common::{evaluate_by_lowering, one, spatial_rank};
use crate::onnx::case::tensor;
use crate::onnx::{Case, OnnxNode, Operator, Outputs};
use crate::ops::ReduceKind;
use crate::{Builder, OpError};

/// Largest element of each channel over all spatial axes (ONNX GlobalMaxPool, opset 22).
pub static OPERATOR: Operator = Operator::new("GlobalMaxPool").lower(lower).evaluate(evaluate_by_lowering).cases(cases);

fn lower(node: &OnnxNode, b: &mut Builder) -> Result<Option<Outputs>, OpError> {
    let x = node.input(0)?;
    let Some(spatial) = spatial_rank(b, x)? else { return Ok(None) };
    one(b.reduce(ReduceKind::Max, x, 2..2 + spatial, true)?)
}

fn cases() -> Vec<Case> {
    let x = tensor(&[1, 2, 2, 2], &[1f32, 2.0, 3.0, 4.0, 20.0, 5.0, 5.0, 10.0]);
    vec![Case::new("two channels", &OPERATOR, 22).input(x).output(tensor(&[1, 2, 1, 1], &[4f32, 20.0]))]
}
