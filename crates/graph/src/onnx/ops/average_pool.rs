use super::common::{evaluate_by_lowering, lower_pool};
use crate::onnx::case::tensor;
use crate::onnx::{Attribute, Case, OnnxNode, Operator, Outputs};
use crate::ops::PoolKind;
use crate::{Builder, OpError};

/// Mean of each window (ONNX AveragePool, opset 22).
pub static OPERATOR: Operator = Operator::new("AveragePool").lower(lower).evaluate(evaluate_by_lowering).cases(cases);

fn lower(node: &OnnxNode, b: &mut Builder) -> Result<Option<Outputs>, OpError> {
    let count_include_pad = node.attributes.flag_or("count_include_pad", false)?;
    lower_pool(node, b, PoolKind::Average { count_include_pad }, 1)
}

fn cases() -> Vec<Case> {
    let case = |name| {
        Case::new(name, &OPERATOR, 22)
            .attribute("kernel_shape", Attribute::Ints(vec![2]))
            .attribute("pads", Attribute::Ints(vec![1, 0]))
            .input(tensor(&[1, 1, 3], &[2f32, 4.0, 8.0]))
    };
    vec![
        case("the border does not count").output(tensor(&[1, 1, 3], &[2f32, 3.0, 6.0])),
        case("the border counts")
            .attribute("count_include_pad", Attribute::Int(1))
            .output(tensor(&[1, 1, 3], &[1f32, 3.0, 6.0])),
    ]
}
