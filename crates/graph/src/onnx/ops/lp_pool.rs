use super::common::{evaluate_by_lowering, lower_pool};
use crate::onnx::case::tensor;
use crate::onnx::{Attribute, Case, OnnxNode, Operator, Outputs};
use crate::ops::PoolKind;
use crate::{Builder, OpError};

/// The p-norm of each window (ONNX LpPool, opset 22).
pub static OPERATOR: Operator = Operator::new("LpPool").lower(lower).evaluate(evaluate_by_lowering).cases(cases);

fn lower(node: &OnnxNode, b: &mut Builder) -> Result<Option<Outputs>, OpError> {
    lower_pool(node, b, PoolKind::Lp { p: node.attributes.int_or("p", 2)? }, 1)
}

fn cases() -> Vec<Case> {
    let case = Case::new("root of squares", &OPERATOR, 22)
        .attribute("kernel_shape", Attribute::Ints(vec![2]))
        .input(tensor(&[1, 1, 3], &[3f32, -4.0, 3.0]));
    vec![case.output(tensor(&[1, 1, 2], &[5f32, 5.0]))]
}
