use super::common::{evaluate_by_lowering, lower_rows};
use crate::onnx::case::tensor;
use crate::onnx::{Attribute, Case, OnnxNode, Operator, Outputs};
use crate::ops::{Op, Softmax};
use crate::{Builder, OpError};

/// Normalised exponentials along an axis (ONNX Softmax, opset 13; below that over all axes from
/// `axis` on).
pub static OPERATOR: Operator = Operator::new("Softmax").lower(lower).evaluate(evaluate_by_lowering).cases(cases);

fn lower(node: &OnnxNode, b: &mut Builder) -> Result<Option<Outputs>, OpError> {
    lower_rows(node, b, |b, x, axis, _| b.add(Op::Softmax(Softmax { axis, log: false }), &[x]))
}

fn cases() -> Vec<Case> {
    let x = tensor(&[1, 2, 3], &[0f32, 1.0, 2.0, 0.0, 1.0, 2.0]);
    let y = tensor(&[1, 2, 3], &[0.09003057f32, 0.24472848, 0.66524094, 0.09003057, 0.24472848, 0.66524094]);
    let uniform = tensor(&[1, 2, 2], &[0.25f32; 4]);
    vec![
        Case::new("last axis", &OPERATOR, 13).input(x).output(y),
        Case::new("axes from 1 on as one", &OPERATOR, 11)
            .attribute("axis", Attribute::Int(1))
            .input(tensor(&[1, 2, 2], &[5f32; 4]))
            .output(uniform),
    ]
}
