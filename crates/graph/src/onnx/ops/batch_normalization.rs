use super::common::{evaluate_by_lowering, per_channel};
use crate::onnx::case::tensor;
use crate::onnx::{Attribute, Case, OnnxNode, Operator, Outputs};
use crate::ops::{Expr, ReduceKind, Unary};
use crate::{Builder, OpError, ValueId};
use halimede_tensor::DType;
use smallvec::smallvec;

/// `(x - mean) / sqrt(variance + ε) · scale + bias` per channel, with given statistics or, in training
/// mode, with those of the batch (ONNX BatchNormalization, opset 15).
pub static OPERATOR: Operator =
    Operator::new("BatchNormalization").lower(lower).evaluate(evaluate_by_lowering).cases(cases);

fn lower(node: &OnnxNode, b: &mut Builder) -> Result<Option<Outputs>, OpError> {
    let attributes = &node.attributes;
    let x = node.input(0)?;
    let Some(rank) = b.rank(x) else { return Ok(None) };
    // Below opset 14 the mode showed only in the outputs that a model asked for.
    let training = match node.opset {
        14.. => attributes.flag_or("training_mode", false)?,
        _ => (1..5).any(|output| node.wants(output)),
    };
    let [scale, bias, mean, variance] = [node.input(1)?, node.input(2)?, node.input(3)?, node.input(4)?];
    let epsilon = attributes.float_or("epsilon", 1e-5)?;
    if !training {
        // Below opset 9, statistics could stand per element instead of per channel.
        let rank = if node.opset < 9 && !attributes.flag_or("spatial", true)? { None } else { Some(rank) };
        return Ok(Some(smallvec![normalise(b, x, scale, bias, mean, variance, epsilon, rank)?]));
    }
    let axes = || (0..rank).filter(|&axis| axis != 1);
    let wide = b.cast(x, DType::F32)?;
    let kept = b.reduce(ReduceKind::Mean, wide, axes(), true)?;
    let deviation = b.map(&(Expr::input(0) - Expr::input(1)), &[wide, kept])?;
    let squares = b.map(&(Expr::input(0) * Expr::input(0)), &[deviation])?;
    let batch_mean = b.reduce(ReduceKind::Mean, wide, axes(), false)?;
    let batch_variance = b.reduce(ReduceKind::Mean, squares, axes(), false)?;
    let y = normalise(b, x, scale, bias, batch_mean, batch_variance, epsilon, Some(rank))?;

    let momentum = attributes.float_or("momentum", 0.9)?;
    let running = |b: &mut Builder, old: ValueId, new: ValueId| {
        let dtype = b.dtype(old)?;
        let new = b.cast(new, dtype)?;
        b.map(&(Expr::input(0) * momentum + Expr::input(1) * (1.0 - f64::from(momentum))), &[old, new])
    };
    let running_mean = running(b, mean, batch_mean)?;
    let running_variance = running(b, variance, batch_variance)?;
    let mut outputs: Outputs = smallvec![y, running_mean, running_variance];
    if node.opset < 14 {
        outputs.extend([batch_mean, batch_variance]);
    }
    outputs.truncate(node.outputs.len());
    Ok(Some(outputs))
}

/// One factor and one offset per channel, worked out first: with constant statistics they fold away.
fn normalise(
    b: &mut Builder,
    x: ValueId,
    scale: ValueId,
    bias: ValueId,
    mean: ValueId,
    variance: ValueId,
    epsilon: f32,
    rank: Option<usize>,
) -> Result<ValueId, OpError> {
    let wide = |b: &mut Builder, value: ValueId| {
        if b.dtype(value)? == DType::F64 { Ok(value) } else { b.cast(value, DType::F32) }
    };
    let [scale, bias, mean, variance] = [wide(b, scale)?, wide(b, bias)?, wide(b, mean)?, wide(b, variance)?];
    let (first, second, third) = (Expr::input(0), Expr::input(1), Expr::input(2));
    let factor = b.map(&(first.clone() / (second.clone() + epsilon).apply(Unary::Sqrt)), &[scale, variance])?;
    let offset = b.map(&(first.clone() - second.clone() * third.clone()), &[bias, mean, factor])?;
    let dtype = b.dtype(x)?;
    let mut shaped = |value: ValueId| {
        let value = b.cast(value, dtype)?;
        match rank {
            Some(rank) if rank > 1 => per_channel(b, value, rank),
            _ => Ok(value),
        }
    };
    let (factor, offset) = (shaped(factor)?, shaped(offset)?);
    b.map(&(first * second + third), &[x, factor, offset])
}

fn cases() -> Vec<Case> {
    let case = |name| {
        let vector = |a: f32, b: f32| tensor(&[2], &[a, b]);
        Case::new(name, &OPERATOR, 15)
            .attribute("epsilon", Attribute::Float(0.0))
            .input(tensor(&[1, 2, 2], &[1f32, 3.0, 2.0, 6.0]))
            .input(vector(1.0, 2.0))
            .input(vector(0.0, 1.0))
            .input(vector(1.0, 2.0))
            .input(vector(4.0, 16.0))
    };
    vec![
        case("given statistics").output(tensor(&[1, 2, 2], &[0f32, 1.0, 1.0, 3.0])),
        case("statistics of the batch")
            .attribute("training_mode", Attribute::Int(1))
            .attribute("momentum", Attribute::Float(0.5))
            .output(tensor(&[1, 2, 2], &[-1f32, 1.0, -1.0, 3.0]))
            .output(tensor(&[2], &[1.5f32, 3.0]))
            .output(tensor(&[2], &[2.5f32, 10.0])),
    ]
}
