use super::common::{centred, conv, conv_op, evaluate_by_lowering, integer_operand, per_channel, spatial_rank};
use crate::onnx::case::tensor;
use crate::onnx::{Attribute, Case, OnnxNode, Operator, Outputs};
use crate::ops::{Binary, Conv, Factors, Op};
use crate::{Builder, OpError, ValueId};
use smallvec::smallvec;

/// Convolution of 8-bit integers, their zero points subtracted, in i32 (ONNX ConvInteger, opset 10).
pub static OPERATOR: Operator = Operator::new("ConvInteger").lower(lower).evaluate(evaluate_by_lowering).cases(cases);

fn lower(node: &OnnxNode, b: &mut Builder) -> Result<Option<Outputs>, OpError> {
    let (x, weights) = (node.input(0)?, node.input(1)?);
    Ok(lower_conv(node, b, x, node.optional(2), weights, node.optional(3), None)?.map(|y| smallvec![y]))
}

/// The i32 convolution of integers. Zeros in the border stand for the zero point, since it is
/// subtracted first.
pub fn lower_conv(
    node: &OnnxNode,
    b: &mut Builder,
    x: ValueId,
    x_zero_point: Option<ValueId>,
    weights: ValueId,
    weights_zero_point: Option<ValueId>,
    bias: Option<ValueId>,
) -> Result<Option<ValueId>, OpError> {
    let Some(spatial) = spatial_rank(b, weights)? else { return Ok(None) };
    if let Some(op) = conv_op(node, b, x, weights)?.filter(|op| op.groups == 1)
        && let Some(weights) = integer_operand(b, (x, x_zero_point), (weights, weights_zero_point), 0)
    {
        let op = Conv { multiply: Some(Factors::Integers), ..op };
        let sums = b.add_with_optional(Op::Conv(op), &[Some(x), Some(weights), x_zero_point])?;
        return match bias {
            Some(bias) => {
                let bias = per_channel(b, bias, spatial + 2)?;
                b.binary(Binary::Add, sums, bias).map(Some)
            }
            None => Ok(Some(sums)),
        };
    }
    let weights_zero_point = match weights_zero_point {
        // One per output channel, the first axis of the weights.
        Some(zero_point) if b.rank(zero_point) == Some(1) => {
            let mut shape = vec![1i64; spatial + 2];
            shape[0] = -1;
            Some(b.reshape(zero_point, &shape)?)
        }
        other => other,
    };
    let (x, weights) = (centred(b, x, x_zero_point)?, centred(b, weights, weights_zero_point)?);
    conv(node, b, x, weights, bias)
}

fn cases() -> Vec<Case> {
    let case = |name| {
        let x = tensor(&[1, 1, 3, 3], &[2u8, 3, 4, 5, 6, 7, 8, 9, 10]);
        Case::new(name, &OPERATOR, 10).input(x).input(tensor(&[1, 1, 2, 2], &[1u8; 4])).input(tensor(&[], &[1u8]))
    };
    vec![
        case("zero point").output(tensor(&[1, 1, 2, 2], &[12i32, 16, 24, 28])),
        case("the border is the zero point")
            .attribute("pads", Attribute::Ints(vec![1, 1, 0, 0]))
            .attribute("strides", Attribute::Ints(vec![2, 2]))
            .output(tensor(&[1, 1, 2, 2], &[1i32, 5, 11, 28])),
    ]
}
