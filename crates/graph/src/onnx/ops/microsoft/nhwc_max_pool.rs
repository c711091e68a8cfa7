use super::quantized::channel_orders;
use crate::onnx::case::tensor;
use crate::onnx::ops::common::{evaluate_by_lowering, lower_pool, one};
use crate::onnx::{Attribute, Case, OnnxNode, Operator, Outputs};
use crate::ops::PoolKind;
use crate::{Builder, OpError};

/// ONNX's MaxPool of 8-bit integers with the channels last (ONNX Runtime NhwcMaxPool).
pub static OPERATOR: Operator =
    Operator::in_domain("com.microsoft", "NhwcMaxPool").lower(lower).evaluate(evaluate_by_lowering).cases(cases);

fn lower(node: &OnnxNode, b: &mut Builder) -> Result<Option<Outputs>, OpError> {
    let Some(rank) = b.rank(node.input(0)?).filter(|&rank| rank > 2) else { return Ok(None) };
    let (first, last) = channel_orders(rank);
    let mut plain = node.clone();
    plain.inputs[0] = Some(b.transpose(node.input(0)?, &first)?);
    let Some(outputs) = lower_pool(&plain, b, PoolKind::Max { column_major: false }, 1)? else { return Ok(None) };
    one(b.transpose(outputs[0], &last)?)
}

fn cases() -> Vec<Case> {
    vec![
        Case::new("windows", &OPERATOR, 1)
            .attribute("kernel_shape", Attribute::Ints(vec![2, 2]))
            .input(tensor(&[1, 2, 3, 2], &[46u8, 96, 225, 247, 163, 148, 145, 15, 95, 250, 104, 54]))
            .output(tensor(&[1, 1, 2, 2], &[225u8, 250, 225, 250])),
    ]
}
