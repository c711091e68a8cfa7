use super::common::{evaluate_by_lowering, lower_pool};
use crate::onnx::case::tensor;
use crate::onnx::{Attribute, Case, OnnxNode, Operator, Outputs};
use crate::ops::PoolKind;
use crate::{Builder, OpError};

/// Largest element of each window, and its position (ONNX MaxPool, opset 22).
pub static OPERATOR: Operator = Operator::new("MaxPool").lower(lower).evaluate(evaluate_by_lowering).cases(cases);

fn lower(node: &OnnxNode, b: &mut Builder) -> Result<Option<Outputs>, OpError> {
    let column_major = node.attributes.flag_or("storage_order", false)?;
    lower_pool(node, b, PoolKind::Max { column_major }, if node.wants(1) { 2 } else { 1 })
}

fn cases() -> Vec<Case> {
    let case = |name| {
        let x = tensor(&[1, 1, 2, 3], &[1f32, 5.0, 2.0, 4.0, 3.0, 6.0]);
        Case::new(name, &OPERATOR, 22).attribute("kernel_shape", Attribute::Ints(vec![2, 2])).input(x)
    };
    let y = || tensor(&[1, 1, 1, 2], &[5f32, 6.0]);
    vec![
        case("values").output(y()),
        case("positions").output(y()).output(tensor(&[1, 1, 1, 2], &[1i64, 5])),
        case("positions by column")
            .attribute("storage_order", Attribute::Int(1))
            .output(y())
            .output(tensor(&[1, 1, 1, 2], &[2i64, 5])),
    ]
}
