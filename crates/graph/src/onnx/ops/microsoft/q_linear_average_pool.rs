use super::quantized::{channel_orders, dequantized, quantized};
use crate::onnx::case::tensor;
use crate::onnx::ops::common::{evaluate_by_lowering, lower_pool, one, spatial_rank};
use crate::onnx::{Attribute, Case, OnnxNode, Operator, Outputs};
use crate::ops::PoolKind;
use crate::{Builder, OpError};

/// Mean of each window of a quantized tensor, quantized (ONNX Runtime QLinearAveragePool).
pub static OPERATOR: Operator =
    Operator::in_domain("com.microsoft", "QLinearAveragePool").lower(lower).evaluate(evaluate_by_lowering).cases(cases);

fn lower(node: &OnnxNode, b: &mut Builder) -> Result<Option<Outputs>, OpError> {
    let Some(spatial) = spatial_rank(b, node.input(0)?)? else { return Ok(None) };
    let channels_last = node.attributes.flag_or("channels_last", false)?;
    let (first, last) = channel_orders(spatial + 2);
    let mut x = dequantized(node, b, 0)?;
    if channels_last {
        x = b.transpose(x, &first)?;
    }
    let mut plain = node.clone();
    plain.inputs[0] = Some(x);
    let count_include_pad = node.attributes.flag_or("count_include_pad", false)?;
    let Some(outputs) = lower_pool(&plain, b, PoolKind::Average { count_include_pad }, 1)? else { return Ok(None) };
    let mean = if channels_last { b.transpose(outputs[0], &last)? } else { outputs[0] };
    one(quantized(node, b, mean, 3, node.input(0)?)?)
}

fn cases() -> Vec<Case> {
    vec![
        Case::new("windows", &OPERATOR, 1)
            .attribute("kernel_shape", Attribute::Ints(vec![2, 2]))
            .attribute("strides", Attribute::Ints(vec![1, 1]))
            .input(tensor(&[1, 1, 3, 3], &[136u8, 68, 246, 224, 47, 129, 239, 216, 180]))
            .input(tensor(&[], &[0.1f32]))
            .input(tensor(&[], &[100u8]))
            .input(tensor(&[], &[0.1f32]))
            .input(tensor(&[], &[90u8]))
            .output(tensor(&[1, 1, 2, 2], &[109u8, 112, 172, 133])),
    ]
}
