use super::common::one;
use crate::onnx::case::tensor;
use crate::onnx::{Attribute, Case, OnnxNode, Operator, Outputs};
use crate::ops::Expr;
use crate::{Builder, OpError};
use halimede_tensor::Tensor;
use smallvec::{SmallVec, smallvec};

/// Elements held within bounds; the upper one wins where they cross (ONNX Clip, opset 13; below 11 the
/// bounds are attributes).
pub static OPERATOR: Operator = Operator::new("Clip").lower(lower).cases(cases);

fn lower(node: &OnnxNode, b: &mut Builder) -> Result<Option<Outputs>, OpError> {
    let mut inputs: SmallVec<[_; 3]> = smallvec![node.input(0)?];
    let mut formula = Expr::input(0);
    if node.opset < 11 {
        if let Some(min) = node.attributes.float("min")? {
            formula = formula.max(min);
        }
        if let Some(max) = node.attributes.float("max")? {
            formula = formula.min(max);
        }
    } else {
        if let Some(min) = node.optional(1) {
            formula = formula.max(Expr::input(inputs.len()));
            inputs.push(min);
        }
        if let Some(max) = node.optional(2) {
            formula = formula.min(Expr::input(inputs.len()));
            inputs.push(max);
        }
    }
    match inputs.len() {
        1 if node.opset >= 11 => one(inputs[0]),
        _ => one(b.map(&formula, &inputs)?),
    }
}

fn cases() -> Vec<Case> {
    let x = || tensor(&[3], &[-2.0f32, 0.0, 2.0]);
    let case = |name| Case::new(name, &OPERATOR, 13).input(x());
    vec![
        case("both bounds")
            .input(Tensor::scalar(-1f32))
            .input(Tensor::scalar(1f32))
            .output(tensor(&[3], &[-1f32, 0.0, 1.0])),
        case("upper bound").no_input().input(Tensor::scalar(1f32)).output(tensor(&[3], &[-2f32, 0.0, 1.0])),
        case("crossed bounds").input(Tensor::scalar(2f32)).input(Tensor::scalar(1f32)).output(tensor(&[3], &[1f32; 3])),
        Case::new("bounds as attributes", &OPERATOR, 6)
            .attribute("min", Attribute::Float(-1.0))
            .input(x())
            .output(tensor(&[3], &[-1f32, 0.0, 2.0])),
    ]
}
