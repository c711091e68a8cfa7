use super::common::{Size, evaluate_by_lowering, one, reshape};
use crate::onnx::case::tensor;
use crate::onnx::{Attribute, Case, OnnxNode, Operator, Outputs};
use crate::ops::{Binary, Expr, Op, Padding, Pool, PoolKind};
use crate::{Builder, OpError};
use smallvec::smallvec;

/// `x / (bias + α/size · Σ x²)^β`, the sum over `size` neighbouring channels (ONNX LRN, opset 13).
pub static OPERATOR: Operator = Operator::new("LRN").lower(lower).evaluate(evaluate_by_lowering).cases(cases);

fn lower(node: &OnnxNode, b: &mut Builder) -> Result<Option<Outputs>, OpError> {
    let attributes = &node.attributes;
    let size = attributes.required("size", attributes.int("size")?)?;
    let Some(window) = usize::try_from(size).ok().filter(|&size| size > 0) else {
        return Err(OpError::invalid(format!("size is {size}; it must be positive")));
    };
    let alpha = attributes.float_or("alpha", 1e-4)?;
    let beta = attributes.float_or("beta", 0.75)?;
    let bias = attributes.float_or("bias", 1.0)?;
    let x = node.input(0)?;
    if b.rank(x).is_none_or(|rank| rank < 2) {
        return Ok(None);
    }
    // The mean of squares over channels is a pooling of [N, 1, C, everything else].
    let squares = b.map(&(Expr::input(0) * Expr::input(0)), &[x])?;
    let (batch, channels) = (Size::of(b, x, 0)?, Size::of(b, x, 1)?);
    let planes = reshape(b, squares, &[batch, Size::Known(1), channels, Size::Known(-1)])?;
    let pool = Pool {
        kind: PoolKind::Average { count_include_pad: true },
        kernel: smallvec![window, 1],
        strides: smallvec![1, 1],
        dilations: smallvec![1, 1],
        padding: Padding::Explicit(smallvec![(size - 1) / 2, 0, size / 2, 0]),
        ceil_mode: false,
        outputs: 1,
        channels_last: false,
    };
    let mean = b.add(Op::Pool(pool), &[planes])?;
    let shape = b.shape_of(x)?;
    let mean = b.reshape_to(mean, shape)?;
    let divisor = (Expr::input(1) * alpha + bias).with(Binary::Pow, beta);
    one(b.map(&(Expr::input(0) / divisor), &[x, mean])?)
}

fn cases() -> Vec<Case> {
    let case = Case::new("two neighbours", &OPERATOR, 13)
        .attribute("size", Attribute::Int(3))
        .attribute("alpha", Attribute::Float(3.0))
        .attribute("beta", Attribute::Float(1.0))
        .input(tensor(&[1, 3, 1, 1], &[1f32, 2.0, 3.0]));
    vec![case.output(tensor(&[1, 3, 1, 1], &[1.0 / 6.0, 2.0 / 15.0, 3.0f32 / 14.0]))]
}
