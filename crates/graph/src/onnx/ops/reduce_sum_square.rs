use super::common::{evaluate_by_lowering, lower_reduce};
use crate::onnx::case::tensor;
use crate::onnx::{Attribute, Case, OnnxNode, Operator, Outputs};
use crate::ops::ReduceKind;
use crate::{Builder, OpError};

/// Sum of squares over axes (ONNX ReduceSumSquare, opset 18; the axes are an input from 18 on).
pub static OPERATOR: Operator =
    Operator::new("ReduceSumSquare").lower(lower).evaluate(evaluate_by_lowering).cases(cases);

fn lower(node: &OnnxNode, b: &mut Builder) -> Result<Option<Outputs>, OpError> {
    lower_reduce(node, b, ReduceKind::SumSquare, 18)
}

fn cases() -> Vec<Case> {
    let x = || tensor(&[2, 3], &[1f32, 2.0, 3.0, 4.0, 5.0, 7.0]);
    let rows = tensor(&[2, 1], &[14.0f32, 90.0]);
    vec![
        Case::new("axes as an input", &OPERATOR, 18).input(x()).input(tensor(&[1], &[-1i64])).output(rows.clone()),
        Case::new("axes as an attribute", &OPERATOR, 11)
            .attribute("axes", Attribute::Ints(vec![1]))
            .input(x())
            .output(rows),
        Case::new("all axes, none kept", &OPERATOR, 18)
            .attribute("keepdims", Attribute::Int(0))
            .input(x())
            .output(tensor(&[], &[104.0f32])),
    ]
}
